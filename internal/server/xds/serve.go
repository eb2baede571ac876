package xds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Access controls the access of one server's callers. The zero Access requires nothing,
// for servers without TLS.
type Access struct {
	// Authenticate returns the caller. Its error ends the stream with
	// Unauthenticated.
	Authenticate func(context.Context) (mesh.Caller, error)
	// Certificate returns the client certificate of an authenticated caller, or nil
	// without one. May be nil.
	Certificate func(context.Context) *mesh.ClientCertificate
	// CheckNode checks the claims of a node against the caller. Its error ends the
	// stream with PermissionDenied.
	CheckNode func(mesh.Caller, proxy.Node) error
	// Recheck returns an error if the caller of a stream has lost its access by a
	// revocation. May be nil.
	Recheck func(context.Context) error
	// Trust returns the roots and revocation lists for authenticated callers. After
	// an error they keep what they have. May be nil.
	Trust func() (*Trust, error)
	// Workload returns the workload of an identity, for the metrics of authenticated callers. May
	// be nil.
	Workload func(identity string) (mesh.WorkloadLabels, bool)
	// Debug serves status pages to authenticated callers. May be nil.
	Debug Debug
	// Health receives reports of the health of workloads. May be nil.
	Health Health
	// Connected is called for each new stream, with its caller and node, and gone at its end.
	// It must not block. May be nil.
	Connected func(mesh.Caller, proxy.Node) (gone func())
}

// Register makes a server serve the hub's configuration over ADS and over services of
// single types. The server needs the hub's ServerOptions and a listener of NewConns;
// without that listener, a stalled stream stays until its connection ends.
func Register(r grpc.ServiceRegistrar, h *Hub, a Access) {
	s := &service{hub: h, access: a}
	for _, d := range services {
		s.register(r, d)
	}
	if a.Workload != nil {
		s.registerWorkloads(r)
	}
}

type service struct {
	hub    *Hub
	access Access
}

// request is a request of either variant.
type request interface {
	proto.Message
	GetNode() *corev3.Node
	GetTypeUrl() string
	GetErrorDetail() *statuspb.Status
}

// serve runs one stream. One goroutine receives and handles its requests, workers of the
// hub's queue send publications, and this goroutine waits for the end of the stream, so
// that nothing delays the end.
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
	first, ok, err := firstRequest(ctx, h, recv)
	if !ok {
		return err
	}
	if isDebug(first.GetTypeUrl()) {
		return serveDebug(ctx, s, stream, caller, first, recv)
	}
	sub, err := s.admit(ctx, caller, first.GetNode(), v)
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
	sess.pages.make = func(r pageRequest, nonce string) (*xdswire.Frame, error) { return s.page(ctx, caller, r, nonce) }
	defer s.reportHealth(sess, caller)()
	sess.expect(first.GetTypeUrl())
	sub.recheck = s.recheck(ctx)
	h.attach(sub)
	defer h.detach(sub)
	defer sess.close()
	// A revocation may have happened between Authenticate and attach.
	if err := sub.recheck(); err != nil {
		h.cfg.Metrics.revoked.Inc()
		log.Warn("stream ended", "error", err)
		return err
	}
	defer s.connected(caller, sub.node)()
	log.Info("proxy connected", "variant", v.String())
	go receive(sess, first, recv, handle)
	return logEnd(ctx, log, sess.wait(ctx))
}

// connected calls Access.Connected, and returns the function to call at the end of the stream.
func (s *service) connected(caller mesh.Caller, n proxy.Node) (gone func()) {
	if s.access.Connected == nil {
		return func() {}
	}
	return s.access.Connected(caller, n)
}

// logEnd logs the end of a stream, and returns its error. If the proxy ended it, there is none.
func logEnd(ctx context.Context, log *slog.Logger, err error) error {
	if err == nil || ctx.Err() != nil {
		log.Info("proxy disconnected", "reason", cmp.Or(admission.ConnOf(ctx).Ended(), "the proxy ended the stream"))
		return nil
	}
	log.Warn("stream ended", "error", err)
	return err
}

// panicked counts and logs a panic, which costs only one stream.
func (h *Hub) panicked(log *slog.Logger, p any) error {
	h.cfg.Metrics.panics.Inc()
	log.Error("panic in a stream", "panic", p, "stack", string(debug.Stack()))
	return status.Error(codes.Internal, "internal error")
}

// caller authenticates the caller and counts the stream for it until it is closed.
func (s *service) caller(ctx context.Context) (caller mesh.Caller, counted *admission.Stream, err error) {
	if s.access.Authenticate != nil {
		if caller, err = s.authenticate(ctx); err != nil {
			// Otherwise Envoy would keep trying on this connection, with the
			// certificate from its handshake.
			admission.ConnOf(ctx).CloseSoon()
			return caller, nil, err
		}
	}
	counted, err = admission.ConnOf(ctx).OpenStream(caller.Identity)
	return caller, counted, err
}

// authenticate returns the caller, or an error to send to it.
func (s *service) authenticate(ctx context.Context) (mesh.Caller, error) {
	caller, err := s.access.Authenticate(ctx)
	if err == nil {
		return caller, nil
	}
	s.hub.cfg.Metrics.rejected.Inc()
	s.hub.cfg.Log.Warn("caller not authenticated", "peer", peerAddr(ctx), "error", err)
	if _, ok := status.FromError(err); ok {
		return caller, err // its message is meant for the caller
	}
	return caller, status.Error(codes.Unauthenticated, "request authenticate failure")
}

// takeTurn waits until the stream may start. Other streams may start after leave, or after
// the time turn.
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

// peerHost returns the address of a peer's host, as AddressOf does.
func peerHost(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return admission.AddressOf(p.Addr).String()
	}
	return ""
}

// peerAddr returns the address of the peer, for logs.
func peerAddr(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return "unknown"
}

// firstRequest waits for the first request besides reports of health. ok is false if the
// stream has ended.
func firstRequest[R request](ctx context.Context, h *Hub, recv func() (R, error)) (first R, ok bool, err error) {
	timeout := time.NewTimer(h.cfg.Limits.FirstRequest)
	defer timeout.Stop()
	return await(ctx, h, timeout.C, func() (R, error) {
		for {
			if r, err := recv(); err != nil || r.GetTypeUrl() != xdswire.HealthType {
				return r, err
			}
		}
	})
}

// await waits for a request. ok is false if the stream has ended. A nil timeout never
// expires.
func await[R request](ctx context.Context, h *Hub, timeout <-chan time.Time, recv func() (R, error)) (r R, ok bool, err error) {
	requests, ended := make(chan R, 1), make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				ended <- h.panicked(h.cfg.Log, p)
			}
		}()
		if r, err := recv(); err != nil {
			ended <- peerError(err)
		} else {
			requests <- r
		}
	}()
	select {
	case r = <-requests:
		return r, true, nil
	case err = <-ended:
	case <-timeout:
		err = status.Error(codes.DeadlineExceeded, "no request arrived in time")
	case <-h.done:
		err = admission.ErrShutdown()
	case <-ctx.Done():
	}
	return r, false, err
}

// receive handles requests until the stream ends.
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
			err = s.sendPage(pageRequestOf(r))
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

// peerError returns nil if the peer ended the stream as usual.
func peerError(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// admit checks the node and returns a subscriber for it.
func (s *service) admit(ctx context.Context, caller mesh.Caller, n *corev3.Node, v xdswire.Variant) (*subscriber, error) {
	h := s.hub
	if n.GetId() == "" {
		return nil, status.Error(codes.InvalidArgument, "missing node information")
	}
	node, err := h.cfg.Generator.ParseNode(n, h.cfg.Limits.MetadataBytes)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if s.access.CheckNode != nil {
		if err := s.access.CheckNode(caller, node); err != nil {
			return nil, status.Error(codes.PermissionDenied, err.Error())
		}
	}
	node.DiscoversHosts = h.cfg.VirtualHostDiscovery && v == xdswire.Delta && isAggregated(ctx) && xdsgen.SupportsHostDiscovery(node)
	node.RequestsHosts = node.DiscoversHosts && h.cfg.HostsOnDemand
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
