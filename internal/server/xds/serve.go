package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Access is what one server asks of its callers. The zero Access asks for
// nothing, for servers without TLS.
type Access struct {
	// Authenticate tells who calls. Its error ends the stream with
	// Unauthenticated.
	Authenticate func(context.Context) (mesh.Caller, error)
	// Certificate tells with which certificate the caller, who was let in, proved
	// itself; nil when it was not by one. May be nil.
	Certificate func(context.Context) *mesh.ClientCertificate
	// CheckNode compares what a proxy says of itself with who it is. Its
	// error ends the stream with PermissionDenied.
	CheckNode func(mesh.Caller, xdsgen.Node) error
	// Recheck says why the caller of a stream would not be let in any more,
	// by what was revoked since. May be nil.
	Recheck func(context.Context) error
	// Trust returns what authenticated callers are told to check peers with.
	// Its error means that they stay with what they have. May be nil.
	Trust func() (*Trust, error)
	// Debug answers authenticated callers that ask for status pages. May be nil:
	// nobody is answered.
	Debug Debug
	// Health is told of the health of workloads. May be nil: nobody is heard.
	Health Health
}

// Health takes what proxies say of the health of their workloads. It must not
// block.
type Health interface {
	// Report says how the workload behind a stream is; problem is empty when it is
	// healthy.
	Report(stream string, who mesh.Caller, n xdsgen.Node, problem string)
	// Gone says that the stream has ended.
	Gone(stream string)
}

// Register makes a server serve the hub's configuration over ADS and over the
// services of single types. The server needs the hub's ServerOptions, and a
// listener of NewConns: without that a stalled stream stays until its
// connection ends.
func Register(r grpc.ServiceRegistrar, h *Hub, a Access) {
	s := &service{hub: h, access: a}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, s)
	registerSeparate(r, s)
}

type service struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	hub    *Hub
	access Access
}

// StreamAggregatedResources implements ADS, state of the world.
func (s *service) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return serve(s, stream, xdswire.SotW, receiver(s.hub, stream, "", sotwType), (*session).sotw)
}

// DeltaAggregatedResources implements ADS, delta.
func (s *service) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return serve(s, stream, xdswire.Delta, receiver(s.hub, stream, "", deltaType), (*session).delta)
}

// request is what the requests of both variants have in common.
type request interface {
	proto.Message
	GetNode() *corev3.Node
	GetTypeUrl() string
	GetErrorDetail() *statuspb.Status
}

// serve runs one stream. Its requests are handled by a goroutine that receives
// them, what the hub publishes by those of the hub's queue; this one waits
// until the stream ends, so that nothing keeps it from ending.
func serve[R request](s *service, stream grpc.ServerStream, v xdswire.Variant, recv func() (R, error), handle func(*session, R) error) (err error) {
	h := s.hub
	log := h.cfg.Log
	defer func() {
		if p := recover(); p != nil {
			err = h.panicked(log, p)
		}
	}()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	if !h.ready.Load() || h.cfg.Ready != nil && !h.cfg.Ready() {
		return status.Error(codes.Unavailable, "server is not ready to serve discovery information")
	}
	caller, counted, err := s.caller(ctx)
	if err != nil {
		return err
	}
	defer counted.Close()
	first, err := firstRequest(ctx, h, recv)
	if err != nil || !first.ok {
		return err
	}
	if isDebug(first.request.GetTypeUrl()) {
		return serveDebug(ctx, s, stream, caller, first.request, recv)
	}
	sub, err := s.admit(ctx, caller, first.request.GetNode(), v)
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
	sess := newSession(ctx, sub, log, h, stream, leave)
	sess.counted = counted
	sess.inquiries.page = func(q question, nonce string) (*xdswire.Frame, error) { return s.page(ctx, caller, q, nonce) }
	defer s.hear(sess, caller)()
	sess.expect(first.request.GetTypeUrl())
	sub.recheck = s.recheck(ctx)
	h.attach(sub)
	defer h.detach(sub)
	defer sess.close()
	// A revocation may have come between Authenticate and attach.
	if err := sub.recheck(); err != nil {
		h.cfg.Metrics.revoked.Inc()
		log.Warn("stream ended", "error", err)
		return err
	}
	log.Info("proxy connected", "variant", v.String())
	go receive(sess, first.request, recv, handle)
	err = sess.wait(ctx)
	if err == nil || ctx.Err() != nil {
		log.Info("proxy disconnected")
		return nil
	}
	log.Warn("stream ended", "error", err)
	return err
}

// panicked counts a panic that costs one stream, and tells of it.
func (h *Hub) panicked(log *slog.Logger, p any) error {
	h.cfg.Metrics.panics.Inc()
	log.Error("panic in a stream", "panic", p, "stack", string(debug.Stack()))
	return status.Error(codes.Internal, "internal error")
}

// caller says who calls, and counts the stream for them until it is closed.
func (s *service) caller(ctx context.Context) (caller mesh.Caller, counted *admission.Stream, err error) {
	if s.access.Authenticate != nil {
		if caller, err = s.authenticate(ctx); err != nil {
			// Envoy would try again on this connection for as long as it lives, with
			// the certificate that it showed in its handshake.
			admission.ConnOf(ctx).CloseSoon()
			return caller, nil, err
		}
	}
	counted, err = admission.ConnOf(ctx).OpenStream(caller.Identity)
	return caller, counted, err
}

// authenticate says who calls. The error is for the caller.
func (s *service) authenticate(ctx context.Context) (mesh.Caller, error) {
	caller, err := s.access.Authenticate(ctx)
	if err == nil {
		return caller, nil
	}
	s.hub.cfg.Metrics.rejected.Inc()
	s.hub.cfg.Log.Warn("caller not authenticated", "peer", peerAddr(ctx), "error", err)
	if _, ok := status.FromError(err); ok {
		return caller, err // says itself what the caller may know
	}
	return caller, status.Error(codes.Unauthenticated, "request authenticate failure")
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
	free, err := h.turns.Enter(ctx, h.done, who)
	if err != nil {
		return nil, err
	}
	admission.ConnOf(ctx).Start()
	over := time.AfterFunc(turn, free)
	return func() {
		over.Stop()
		free()
	}, nil
}

// peerHost is what the peers of one host share.
func peerHost(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return admission.AddressOf(p.Addr).String()
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

type maybe[R request] struct {
	request R
	ok      bool
}

// firstRequest waits for the first message that is a request. Not ok means
// that the peer ended the stream before.
func firstRequest[R request](ctx context.Context, h *Hub, recv func() (R, error)) (maybe[R], error) {
	timeout := time.NewTimer(h.cfg.Limits.FirstRequest)
	defer timeout.Stop()
	requests, ended := make(chan R, 1), make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				ended <- h.panicked(h.cfg.Log, p)
			}
		}()
		for {
			r, err := recv()
			if err != nil {
				ended <- err
				return
			}
			if r.GetTypeUrl() != xdswire.HealthType {
				requests <- r
				return
			}
		}
	}()
	select {
	case r := <-requests:
		return maybe[R]{r, true}, nil
	case err := <-ended:
		return maybe[R]{}, peerError(err)
	case <-timeout.C:
		return maybe[R]{}, status.Error(codes.DeadlineExceeded, "no request arrived in time")
	case <-h.done:
		return maybe[R]{}, admission.ErrShutdown()
	case <-ctx.Done():
		return maybe[R]{}, nil
	}
}

// receive handles requests until the peer ends the stream, or the stream ends
// otherwise.
func receive[R request](s *session, r R, recv func() (R, error), handle func(*session, R) error) {
	defer func() {
		if p := recover(); p != nil {
			s.end(s.hub.panicked(s.log, p))
		}
	}()
	for {
		var err error
		switch {
		case isDebug(r.GetTypeUrl()):
			err = s.inquire(questionOf(r))
		case r.GetTypeUrl() == xdswire.HealthType:
			s.takeHealth(r)
		default:
			err = s.take(func() error { return handle(s, r) })
		}
		if err != nil {
			s.end(err)
			return
		}
		if r, err = recv(); err != nil {
			s.end(peerError(err))
			return
		}
	}
}

// hear has somebody take what the caller says of its workload, until the stream
// has ended: a message that is being received then does not count any more.
func (s *service) hear(sess *session, caller mesh.Caller) (ended func()) {
	h, sub := s.access.Health, sess.sub
	if h == nil {
		return func() {}
	}
	var mu sync.Mutex
	over := false
	sess.health = func(problem string) {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			h.Report(sub.id, caller, sub.node, problem)
		}
	}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		h.Gone(sub.id)
	}
}

// takeHealth passes on what the peer says of its workload.
func (s *session) takeHealth(r request) {
	if s.health == nil {
		return
	}
	problem := ""
	if e := r.GetErrorDetail(); e != nil {
		problem = cmp.Or(clip(e.GetMessage()), "no reason was given")
	}
	s.health(problem)
}

// peerError is nil when the peer ended the stream in an ordinary way.
func peerError(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// admit checks the node and makes the subscriber.
func (s *service) admit(ctx context.Context, caller mesh.Caller, n *corev3.Node, v xdswire.Variant) (*subscriber, error) {
	h := s.hub
	if n.GetId() == "" {
		return nil, status.Error(codes.InvalidArgument, "missing node information")
	}
	node, err := h.cfg.Generation.ParseNode(n, h.cfg.Limits.MetadataBytes)
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
	sub := &subscriber{
		id: id, node: node, caller: caller, address: peerAddr(ctx), variant: v,
		connected: h.cfg.Now(),
	}
	if s.access.Certificate != nil {
		sub.certificate = s.access.Certificate(ctx)
	}
	return sub, nil
}
