package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Access is what one server asks of its callers. The zero Access asks for
// nothing, for servers without TLS.
type Access struct {
	// Authenticate tells who calls. Its error ends the stream with
	// Unauthenticated.
	Authenticate func(context.Context) (mesh.Caller, error)
	// CheckNode compares what a proxy says of itself with who it is. Its
	// error ends the stream with PermissionDenied.
	CheckNode func(mesh.Caller, xdsgen.Node) error
}

// Register makes a server serve the hub's configuration over ADS. The server
// needs the hub's ServerOptions, and a listener of NewConns: without that a
// stalled stream stays until its connection ends.
func Register(r grpc.ServiceRegistrar, h *Hub, a Access) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, &service{hub: h, access: a})
}

type service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	hub    *Hub
	access Access
}

// StreamAggregatedResources implements ADS, state of the world.
func (s *service) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return serve(s, stream, xdswire.SotW, stream.Recv, (*session).sotw)
}

// DeltaAggregatedResources implements ADS, delta.
func (s *service) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return serve(s, stream, xdswire.Delta, stream.Recv, (*session).delta)
}

// request is what the requests of both variants have in common.
type request interface {
	GetNode() *corev3.Node
	GetTypeUrl() string
}

// healthType marks messages in which agents report health. They may come
// before the first request and ask for nothing.
const healthType = "type.googleapis.com/istio.v1.HealthInformation"

// serve runs one stream: a goroutine receives, this one does the rest.
func serve[R request](s *service, stream grpc.ServerStream, v xdswire.Variant, recv func() (R, error), handle func(*session, R) error) (err error) {
	h := s.hub
	log := h.cfg.Log
	defer func() {
		if p := recover(); p != nil {
			h.cfg.Metrics.panics.Inc()
			log.Error("panic in a stream", "panic", p, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	if !h.ready.Load() || h.cfg.Ready != nil && !h.cfg.Ready() {
		return status.Error(codes.Unavailable, "server is not ready to serve discovery information")
	}
	caller, closeStream, err := s.caller(ctx)
	if err != nil {
		return err
	}
	defer closeStream()
	requests := make(chan R, 1)
	ended := make(chan error, 1)
	go func() { ended <- receive(ctx, h, recv, requests) }()
	first, err := firstRequest(ctx, h, requests, ended)
	if err != nil || !first.ok {
		return err
	}
	sub, err := s.admit(caller, first.request.GetNode(), v)
	if err != nil {
		h.cfg.Metrics.rejected.Inc()
		return err
	}
	log = log.With("proxy", sub.id)
	leave, err := s.takeTurn(ctx, caller)
	if err != nil {
		return err
	}
	defer leave()
	sess := &session{hub: h, sub: sub, log: log, send: sender(ctx, h.cfg.Limits.Write, stream, leave)}
	h.attach(sub)
	defer h.detach(sub)
	log.Info("proxy connected", "variant", v.String())
	err = loop(ctx, sess, first.request, requests, ended, handle)
	if err == nil || ctx.Err() != nil {
		log.Info("proxy disconnected")
		return nil
	}
	log.Warn("stream ended", "error", err)
	return err
}

// caller says who calls, and counts the stream for them until closeStream.
func (s *service) caller(ctx context.Context) (caller mesh.Caller, closeStream func(), err error) {
	if s.access.Authenticate == nil {
		return mesh.Caller{}, func() {}, nil
	}
	if caller, err = s.access.Authenticate(ctx); err != nil {
		s.hub.cfg.Metrics.rejected.Inc()
		s.hub.cfg.Log.Warn("caller not authenticated", "peer", peerAddr(ctx), "error", err)
		if _, ok := status.FromError(err); ok {
			return caller, nil, err // says itself what the caller may know
		}
		return caller, nil, status.Error(codes.Unauthenticated, "request authenticate failure")
	}
	conn := connOf(ctx)
	if conn == nil {
		return caller, func() {}, nil
	}
	closeStream, err = conn.openStream(caller.Identity)
	return caller, closeStream, err
}

// takeTurn waits until the stream may start. It makes room for others with
// leave, and in any case after a while.
func (s *service) takeTurn(ctx context.Context, caller mesh.Caller) (leave func(), err error) {
	h := s.hub
	who := caller.Identity.String()
	if s.access.Authenticate == nil {
		who = peerHost(ctx)
	}
	h.cfg.Metrics.waiting.Inc()
	defer h.cfg.Metrics.waiting.Dec()
	free, err := h.turns.enter(ctx, h.done, who)
	if err != nil {
		return nil, err
	}
	over := time.AfterFunc(turn, free)
	return func() {
		over.Stop()
		free()
	}, nil
}

// peerHost is what the peers of one host share.
func peerHost(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return addressOf(p.Addr).String()
	}
	return ""
}

// peerAddr is the address at the other end, for logs.
func peerAddr(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return "unknown"
}

// receive hands over requests until the peer ends the stream or ctx ends.
func receive[R request](ctx context.Context, h *Hub, recv func() (R, error), requests chan<- R) (err error) {
	defer func() {
		if p := recover(); p != nil {
			h.cfg.Metrics.panics.Inc()
			err = status.Errorf(codes.Internal, "receive: panic: %v", p)
		}
	}()
	for {
		r, err := recv()
		if err != nil {
			return err
		}
		select {
		case requests <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type maybe[R request] struct {
	request R
	ok      bool
}

// firstRequest waits for the first message that is a request. Not ok means
// that the peer ended the stream before.
func firstRequest[R request](ctx context.Context, h *Hub, requests <-chan R, ended <-chan error) (maybe[R], error) {
	timeout := time.NewTimer(h.cfg.Limits.FirstRequest)
	defer timeout.Stop()
	for {
		select {
		case r := <-requests:
			if r.GetTypeUrl() == healthType {
				continue
			}
			return maybe[R]{r, true}, nil
		case err := <-ended:
			return maybe[R]{}, peerError(err)
		case <-timeout.C:
			return maybe[R]{}, status.Error(codes.DeadlineExceeded, "no request arrived in time")
		case <-h.done:
			return maybe[R]{}, errShutdown()
		case <-ctx.Done():
			return maybe[R]{}, nil
		}
	}
}

// peerError is nil when the peer ended the stream in an ordinary way.
func peerError(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

func errShutdown() error { return status.Error(codes.Unavailable, "server is shutting down") }

// admit checks the node and makes the subscriber.
func (s *service) admit(caller mesh.Caller, n *corev3.Node, v xdswire.Variant) (*subscriber, error) {
	h := s.hub
	if n.GetId() == "" {
		return nil, status.Error(codes.InvalidArgument, "missing node information")
	}
	node, err := h.cfg.Generation.ParseNode(n)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if s.access.CheckNode != nil {
		if err := s.access.CheckNode(caller, node); err != nil {
			return nil, status.Error(codes.PermissionDenied, err.Error())
		}
	}
	h.mu.Lock()
	h.streams++
	id := fmt.Sprintf("%s-%d", node.ID.ProxyID(), h.streams)
	h.mu.Unlock()
	return &subscriber{
		id: id, node: node, caller: caller, variant: v,
		connected: h.cfg.Now(), wake: make(chan struct{}, 1),
	}, nil
}

// loop handles, in this order of preference: requests; what the hub has
// published. It ends when the peer ends the stream, its context ends, or the
// hub does.
func loop[R request](ctx context.Context, s *session, first R, requests <-chan R, ended <-chan error, handle func(*session, R) error) error {
	take := func(r R) error {
		if err := handle(s, r); err != nil {
			return err
		}
		return s.flush()
	}
	if err := take(first); err != nil {
		return err
	}
	for {
		select {
		case r := <-requests:
			if err := take(r); err != nil {
				return err
			}
			continue
		default:
		}
		var err error
		select {
		case r := <-requests:
			err = take(r)
		case <-s.sub.wake:
			err = s.flush()
		case err := <-ended:
			return peerError(err)
		case <-s.hub.done:
			return errShutdown()
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// sender sends frames and calls sent each time gRPC has nothing left of them.
// A peer that does not take a frame in time loses its connection: gRPC would
// keep both for as long as it answers pings, also after the stream has ended.
func sender(ctx context.Context, limit time.Duration, stream grpc.ServerStream, sent func()) func(*xdswire.Frame) error {
	w := &writes{limit: limit, sent: sent}
	w.late = time.AfterFunc(limit, func() {
		if c := connOf(ctx); c != nil {
			c.stall()
		}
	})
	w.late.Stop()
	return func(f *xdswire.Frame) error {
		w.begin()
		end := sync.OnceFunc(w.end)
		f.WhenWritten(end)
		err := stream.SendMsg(f)
		if err != nil {
			end()
		}
		return err
	}
}

// writes counts the frames of a stream that gRPC holds, and bounds how long.
type writes struct {
	limit time.Duration
	sent  func()

	mu   sync.Mutex
	open int
	late *time.Timer // runs while open > 0
}

func (w *writes) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open++; w.open == 1 {
		w.late.Reset(w.limit)
	}
}

// end is called by gRPC's writing goroutine.
func (w *writes) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open--; w.open > 0 {
		w.late.Reset(w.limit) // for the next one
		return
	}
	w.late.Stop()
	w.sent()
}
