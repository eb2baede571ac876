package xds

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Debug answers requests for status pages.
type Debug interface {
	// XDS returns the resources of a status page for the caller. An error must have
	// a gRPC status; it ends the stream.
	XDS(ctx context.Context, who mesh.Caller, typeURL string, names []string) ([]*anypb.Any, error)
	// Identifier returns the identifier of this control plane in answers.
	Identifier() string
}

func isDebug(typeURL string) bool {
	return typeURL == xdswire.DebugType || strings.HasPrefix(typeURL, xdswire.DebugType+"/")
}

// pageRequest is a request for a status page in either variant.
type pageRequest struct {
	typeURL, nonce string
	names          []string
	delta          bool
}

func pageRequestOf(r request) pageRequest {
	switch r := r.(type) {
	case *discoveryv3.DiscoveryRequest:
		return pageRequest{r.GetTypeUrl(), r.GetResponseNonce(), r.GetResourceNames(), false}
	case *discoveryv3.DeltaDiscoveryRequest:
		return pageRequest{r.GetTypeUrl(), r.GetResponseNonce(), r.GetResourceNamesSubscribe(), true}
	}
	return pageRequest{}
}

// serveDebug runs a stream that only asks for status pages. Each request gets one
// answer; the node in it is ignored.
func serveDebug[R request](ctx context.Context, s *service, stream grpc.ServerStream, caller mesh.Caller, first R, recv func() (R, error)) error {
	var nonces xdswire.Nonces
	last := ""
	for r, ok := first, true; ok; {
		if q := pageRequestOf(r); last == "" || q.nonce != last { // otherwise an ACK
			last = nonces.Next()
			if err := s.answer(ctx, stream, caller, q, last); err != nil {
				return err
			}
		}
		var err error
		if r, ok, err = await(ctx, s.hub, nil, recv); err != nil {
			return err
		}
	}
	return nil
}

// answer sends a page. A peer that does not read it loses its connection.
func (s *service) answer(ctx context.Context, stream grpc.ServerStream, caller mesh.Caller, q pageRequest, nonce string) error {
	if !isDebug(q.typeURL) {
		return status.Error(codes.InvalidArgument, "this stream serves status pages only: open another one for configuration")
	}
	f, err := s.page(ctx, caller, q, nonce)
	if err != nil {
		return err
	}
	late := time.AfterFunc(s.hub.cfg.Limits.Write, admission.ConnOf(ctx).Stall)
	defer late.Stop()
	return stream.SendMsg(f)
}

// page makes the answer to a request. Its error has a gRPC status.
func (s *service) page(ctx context.Context, caller mesh.Caller, q pageRequest, nonce string) (*xdswire.Frame, error) {
	if s.access.Debug == nil {
		return nil, status.Error(codes.Unauthenticated, "authentication required")
	}
	if err := s.recheck(ctx)(); err != nil {
		return nil, err
	}
	resources, err := s.access.Debug.XDS(ctx, caller, q.typeURL, q.names)
	if err != nil {
		if status.Code(err) == codes.PermissionDenied {
			h := s.hub
			h.cfg.Metrics.rejected.Inc()
			h.cfg.Log.Warn("caller may not see status pages", "peer", peerAddr(ctx), "identity", caller.Identity.String(), "type", clip(q.typeURL))
		}
		return nil, err
	}
	m, err := xdswire.Any(q.answer(resources, &corev3.ControlPlane{Identifier: s.access.Debug.Identifier()}))
	if err != nil {
		return nil, status.Error(codes.Internal, "the page cannot be encoded")
	}
	return xdswire.NewFrame(xdswire.Header{TypeURL: q.typeURL, Nonce: nonce}, xdswire.RawBody(m.GetValue())), nil
}

// answer returns the answer without its type and nonce.
func (q *pageRequest) answer(resources []*anypb.Any, who *corev3.ControlPlane) proto.Message {
	if !q.delta {
		return &discoveryv3.DiscoveryResponse{Resources: resources, ControlPlane: who}
	}
	m := &discoveryv3.DeltaDiscoveryResponse{ControlPlane: who}
	for i, a := range resources {
		r := &discoveryv3.Resource{Resource: a}
		if i < len(q.names) {
			r.Name = q.names[i]
		}
		m.Resources = append(m.Resources, r)
	}
	return m
}

// maxPages is the number of pages that may wait on a stream until the peer reads.
const maxPages = 4

// pages are the status pages of a stream that carries configuration. Each request gets
// one.
type pages struct {
	make func(q pageRequest, nonce string) (*xdswire.Frame, error)
	// nonces numbers pages; nonce belongs to the last one. Only the goroutine that
	// receives uses them.
	nonces xdswire.Nonces
	nonce  string
	// ready holds pages to send. The session's lock guards it.
	ready []*xdswire.Frame
}

// sendPage answers a request. It makes the page without the lock, as that may take a
// while.
func (s *session) sendPage(q pageRequest) error {
	if s.pages.nonce != "" && q.nonce == s.pages.nonce {
		return nil // an ACK
	}
	nonce := "page-" + s.pages.nonces.Next() // never a nonce of configuration
	f, err := s.pages.make(q, nonce)
	if err != nil {
		return err
	}
	s.pages.nonce = nonce
	return s.take(func() error {
		if len(s.pages.ready) == maxPages {
			return status.Errorf(codes.ResourceExhausted, "%d status pages are unread: read an answer before the next request", maxPages)
		}
		s.pages.ready = append(s.pages.ready, f)
		return nil
	})
}

// flushPages sends pages while there is room.
func (s *session) flushPages() error {
	for len(s.pages.ready) > 0 && s.writer.hasRoom() {
		f := s.pages.ready[0]
		s.pages.ready = s.pages.ready[1:]
		if err := s.send(f); err != nil {
			return fmt.Errorf("send a status page: %w", err)
		}
	}
	return nil
}
