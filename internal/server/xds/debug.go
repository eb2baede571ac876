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
	"google.golang.org/grpc/mem"
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

// question is a request for a status page in either variant.
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

// serveDebug runs a stream that only asks for status pages. Each request gets one
// answer; the node in it is ignored.
func serveDebug[R request](ctx context.Context, s *service, stream grpc.ServerStream, caller mesh.Caller, first R, recv func() (R, error)) error {
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
		if q := questionOf(r); last == "" || q.nonce != last { // otherwise an ACK
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
			return admission.ErrShutdown()
		case <-ctx.Done():
			return nil
		}
	}
}

// answer sends a page. A peer that does not read it loses its connection.
func (s *service) answer(ctx context.Context, stream grpc.ServerStream, caller mesh.Caller, q question, nonce string) error {
	if !isDebug(q.typeURL) {
		return status.Error(codes.InvalidArgument, "a stream for status pages gives no configuration: open another one")
	}
	f, err := s.page(ctx, caller, q, nonce)
	if err != nil {
		return err
	}
	late := time.AfterFunc(s.hub.cfg.Limits.Write, admission.ConnOf(ctx).Stall)
	defer late.Stop()
	return stream.SendMsg(f)
}

// page makes the answer to a question. Its error has a gRPC status.
func (s *service) page(ctx context.Context, caller mesh.Caller, q question, nonce string) (*xdswire.Frame, error) {
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
	return xdswire.NewFrame(xdswire.Header{TypeURL: q.typeURL, Nonce: nonce}, xdswire.Body{mem.SliceBuffer(m.GetValue())}), nil
}

// answer returns the answer without its type and nonce.
func (q *question) answer(resources []*anypb.Any, who *corev3.ControlPlane) proto.Message {
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

// inquiries are requests for status pages on a stream that carries configuration. Each
// gets one answer.
type inquiries struct {
	page func(q question, nonce string) (*xdswire.Frame, error)
	// nonces numbers pages; nonce belongs to the last one. Only the goroutine that
	// receives uses them.
	nonces xdswire.Nonces
	nonce  string
	// ready holds pages to send. The session's lock guards it.
	ready []*xdswire.Frame
}

// inquire answers a question. It makes the page without the lock, as that may take a
// while.
func (s *session) inquire(q question) error {
	if s.inquiries.nonce != "" && q.nonce == s.inquiries.nonce {
		return nil // an ACK
	}
	nonce := "page-" + s.inquiries.nonces.Next() // never a nonce of configuration
	f, err := s.inquiries.page(q, nonce)
	if err != nil {
		return err
	}
	s.inquiries.nonce = nonce
	return s.take(func() error {
		if len(s.inquiries.ready) == maxPages {
			return status.Errorf(codes.ResourceExhausted, "%d status pages were not read yet: ask for the next when there is an answer", maxPages)
		}
		s.inquiries.ready = append(s.inquiries.ready, f)
		return nil
	})
}

// flushPages sends pages while there is room.
func (s *session) flushPages() error {
	for len(s.inquiries.ready) > 0 && s.writer.hasRoom() {
		f := s.inquiries.ready[0]
		s.inquiries.ready = s.inquiries.ready[1:]
		if err := s.send(f); err != nil {
			return fmt.Errorf("send a status page: %w", err)
		}
	}
	return nil
}
