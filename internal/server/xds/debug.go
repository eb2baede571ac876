package xds

import (
	"context"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds/gate"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Debug answers requests for status pages.
type Debug interface {
	// XDS makes the resources of a debug type for the caller. Its error is of
	// gRPC, and ends the stream.
	XDS(ctx context.Context, who mesh.Caller, typeURL string, names []string) ([]*anypb.Any, error)
	// Identifier says who answers.
	Identifier() string
}

func isDebug(typeURL string) bool {
	return typeURL == xdswire.DebugType || strings.HasPrefix(typeURL, xdswire.DebugType+"/")
}

// question is a request for a status page, in either variant.
type question struct {
	typeURL, nonce string
	names          []string
	delta          bool
}

func questionOf(r request) question {
	switch r := r.(type) {
	case *discoveryv3.DiscoveryRequest:
		return question{r.GetTypeUrl(), r.GetResponseNonce(), r.GetResourceNames(), false}
	case *discoveryv3.DeltaDiscoveryRequest:
		return question{r.GetTypeUrl(), r.GetResponseNonce(), r.GetResourceNamesSubscribe(), true}
	}
	return question{}
}

// serveDebug runs a stream that asks for status pages alone. Nothing is watched:
// each request is answered once. What the caller says of itself does not count.
func serveDebug[R request](ctx context.Context, s *service, stream grpc.ServerStream, caller mesh.Caller, first R, recv func() (R, error)) error {
	if s.access.Debug == nil {
		return status.Error(codes.Unauthenticated, "authentication required")
	}
	requests, ended := make(chan R), make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				ended <- s.hub.panicked(s.hub.cfg.Log, p)
			}
		}()
		for {
			r, err := recv()
			if err != nil {
				ended <- peerError(err)
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	var nonces xdswire.Nonces
	last := ""
	for r := first; ; {
		if q := questionOf(r); last == "" || q.nonce != last { // else it is an ACK
			last = nonces.Next()
			if err := s.answer(ctx, stream, caller, q, last); err != nil {
				return err
			}
		}
		select {
		case r = <-requests:
		case err := <-ended:
			return err
		case <-s.hub.done:
			return gate.ErrShutdown()
		case <-ctx.Done():
			return nil
		}
	}
}

// answer sends what is asked for. A peer that does not read it loses its
// connection.
func (s *service) answer(ctx context.Context, stream grpc.ServerStream, caller mesh.Caller, q question, nonce string) error {
	h := s.hub
	if !isDebug(q.typeURL) {
		return status.Error(codes.InvalidArgument, "a stream for status pages gives no configuration: open another one")
	}
	if err := s.recheck(ctx)(); err != nil {
		return err
	}
	resources, err := s.access.Debug.XDS(ctx, caller, q.typeURL, q.names)
	if err != nil {
		if status.Code(err) == codes.PermissionDenied {
			h.cfg.Metrics.rejected.Inc()
			h.cfg.Log.Warn("caller may not see status pages", "peer", peerAddr(ctx), "identity", caller.Identity.String(), "type", clip(q.typeURL))
		}
		return err
	}
	who := &corev3.ControlPlane{Identifier: s.access.Debug.Identifier()}
	late := time.AfterFunc(h.cfg.Limits.Write, gate.ConnOf(ctx).Stall)
	defer late.Stop()
	if !q.delta {
		return stream.SendMsg(&discoveryv3.DiscoveryResponse{TypeUrl: q.typeURL, Nonce: nonce, Resources: resources, ControlPlane: who})
	}
	m := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: q.typeURL, Nonce: nonce, ControlPlane: who}
	for i, a := range resources {
		r := &discoveryv3.Resource{Resource: a}
		if i < len(q.names) {
			r.Name = q.names[i]
		}
		m.Resources = append(m.Resources, r)
	}
	return stream.SendMsg(m)
}
