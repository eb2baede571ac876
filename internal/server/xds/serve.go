package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// maxRequest is the size of the largest request that is read, in bytes.
const maxRequest = 4 << 20

// ServerOptions are the options of a gRPC server that serves a Hub. A server
// must have them all: frames need the codec, and the rest is what keeps a
// stream small and a hostile peer bounded.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(xdswire.Codec{}),
		grpc.ReadBufferSize(4 << 10),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxHeaderListSize(64 << 10),
		grpc.MaxConcurrentStreams(100),
		grpc.ConnectionTimeout(15 * time.Second),
		// Half of what agents are told to send.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 15 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
}

// Access is what one server asks of its callers. The zero Access asks for
// nothing, for servers without TLS.
type Access struct {
	// Authenticate tells who calls. Its error ends the stream with
	// Unauthenticated.
	Authenticate func(context.Context) (mesh.Caller, error)
	// CheckNode compares what a proxy says of itself with who it is. Its
	// error ends the stream with PermissionDenied.
	CheckNode func(mesh.Caller, xdsgen.Node) error
	// CloseConn closes the connection of a stream whose peer does not read.
	// Without it a stalled stream stays until its connection ends.
	CloseConn func(context.Context)
}

// Register makes a server serve the hub's configuration over ADS.
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
	var caller mesh.Caller
	if s.access.Authenticate != nil {
		if caller, err = s.access.Authenticate(ctx); err != nil {
			h.cfg.Metrics.rejected.Inc()
			log.Warn("caller not authenticated", "peer", peerAddr(ctx), "error", err)
			if _, ok := status.FromError(err); ok {
				return err // says itself what the caller may know
			}
			return status.Error(codes.Unauthenticated, "request authenticate failure")
		}
	}
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
	sess := &session{hub: h, sub: sub, log: log, send: sender(ctx, s, log, stream)}
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

// sender sends frames. A peer that does not read one in time loses its
// connection: gRPC would keep the frame and the connection otherwise.
func sender(ctx context.Context, s *service, log *slog.Logger, stream grpc.ServerStream) func(*xdswire.Frame) error {
	var late atomic.Bool
	limit := s.hub.cfg.Limits.Write
	watch := time.AfterFunc(limit, func() {
		late.Store(true)
		s.hub.cfg.Metrics.stalled.Inc()
		log.Warn("the proxy does not read its configuration: closing its connection", "after", limit)
		if s.access.CloseConn != nil {
			s.access.CloseConn(ctx)
		}
	})
	watch.Stop()
	return func(f *xdswire.Frame) error {
		watch.Reset(limit)
		defer watch.Stop()
		err := stream.SendMsg(f)
		if err != nil && late.Load() {
			return status.Errorf(codes.DeadlineExceeded, "a response was not read within %v", limit)
		}
		return err
	}
}
