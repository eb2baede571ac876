package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// session is one stream of a proxy. The goroutine of run owns it; other goroutines receive
// and send on streams.
type session struct {
	*Relay
	variant xdswire.Variant
	down    grpc.ServerStream
	log     *slog.Logger
	ended   <-chan struct{} // of the session
	tasks   sync.WaitGroup

	node *corev3.Node // nil before the first request
	subs map[string]*subscription
	// order has all subscriptions in the order of their first requests; queue those that
	// have something to send.
	order, queue []*subscription

	requests  chan *request
	upstreams chan event
	results   chan result
	// fetched has the extensions whose module was missing and is there now.
	fetched chan string
	// up is the present stream to the control plane, nil without one; stream is its number.
	up     *upstream
	stream uint64
	// next is the request to send next; introduced is set when the node was sent on the
	// stream.
	next       *message
	introduced bool
	// modules has, for each extension with a module that was to fetch, the function that ends its
	// use, or the attempts to fetch it.
	modules map[string]func()
	// responded is set once the control plane has responded to the proxy.
	responded bool
}

func newSession(r *Relay, v xdswire.Variant, down grpc.ServerStream) *session {
	return &session{
		Relay: r, variant: v, down: down, log: r.Log, subs: map[string]*subscription{},
		requests: make(chan *request), upstreams: make(chan event), results: make(chan result), fetched: make(chan string), modules: map[string]func(){},
	}
}

// run relays until the proxy ends its stream, or ctx ends.
func (s *session) run(ctx context.Context) (err error) {
	defer func() { s.counters.proxyTerminations.add(err) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() {
		for _, drop := range s.modules {
			drop()
		}
	}()
	defer s.tasks.Wait()
	defer cancel(nil)
	s.ended = ctx.Done()
	// It ends with the stream: gRPC ends that when run has returned.
	go func() { cancel(s.receive()) }()
	for {
		if err := s.prepare(); err != nil {
			return err
		}
		var up chan<- *message
		if s.next != nil {
			up = s.up.requests
		}
		select {
		case r := <-s.requests:
			err = s.takeRequest(ctx, r)
		case up <- s.next:
			s.next = nil
		case e := <-s.upstreams:
			err = s.takeUpstream(ctx, e)
		case r := <-s.results:
			err = s.takeResult(ctx, r)
		case extension := <-s.fetched:
			s.takeFetched(extension)
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, io.EOF) {
				return cause
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// receive receives requests until the stream ends, and returns the cause.
func (s *session) receive() error {
	for {
		var m message
		if err := s.down.RecvMsg(&m); err != nil {
			return err
		}
		r, err := decodeRequest(s.variant, m.bytes())
		m.data.Free()
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		select {
		case s.requests <- r:
		case <-s.ended:
			return nil
		}
	}
}

// prepare makes the next request to the control plane, if there is a stream and something
// to send.
func (s *session) prepare() error {
	for s.up != nil && s.next == nil && len(s.queue) > 0 {
		sub := s.queue[0]
		r := sub.request()
		if r == nil {
			sub.queued = false
			s.queue = s.queue[1:]
			continue
		}
		if !s.introduced {
			r.node, s.introduced = s.node, true
		}
		var err error
		if s.next, err = r.encode(s.variant); err != nil {
			return err
		}
		s.queue = append(s.queue[1:], sub) // other types come before its next request
	}
	return nil
}

func (s *session) enqueue(sub *subscription) {
	if !sub.queued {
		sub.queued = true
		s.queue = append(s.queue, sub)
	}
}

// takeRequest takes a request of the proxy. The first one opens the stream to the control
// plane.
func (s *session) takeRequest(ctx context.Context, r *request) error {
	s.counters.requests.Add(1)
	if s.node == nil {
		if r.node == nil {
			return status.Error(codes.InvalidArgument, "the first request has no node")
		}
		s.node = r.node
		s.log = s.log.With("node", s.node.GetId())
		s.tasks.Go(func() { s.connect(ctx) })
	}
	sub, err := s.subscription(r.typeURL)
	if err != nil || sub.handler != nil {
		return err
	}
	if r.typeURL == xdswire.VirtualHostType {
		for name := range r.held {
			r.held[name] = "" // Envoy may have dropped it
		}
	}
	sub.changed = sub.content.take(r) || sub.changed
	if sub.content.count() > maxNames {
		return status.Errorf(codes.ResourceExhausted, "the subscription to %s has more than %d names", r.typeURL, maxNames)
	}
	if stream, nonce, ok := splitNonce(r.nonce); ok {
		s.answer(sub, stream, nonce, r.problem)
	}
	s.enqueue(sub)
	if r.typeURL == xdswire.ListenerType {
		return s.subscribeHandlers()
	}
	return nil
}

// answer takes an answer to a response. The control plane receives the answers to responses
// of the present stream; other nonces mean nothing to it.
func (s *session) answer(sub *subscription, stream uint64, nonce string, problem *rpcstatus.Status) {
	if hosts := s.subs[xdswire.VirtualHostType]; hosts != nil && sub.typeURL == xdswire.RouteType {
		for _, r := range sub.open {
			hosts.content.dropped(r.envelope)
		}
	}
	known := sub.answered(stream, nonce, problem)
	// In the variant with state of the world, each request repeats the last answer.
	if stream == s.stream && s.up != nil && sub.requested && (known || s.variant == xdswire.SotW) {
		sub.answers = sub.content.answer(sub.answers, answer{nonce, problem})
		s.enqueue(sub)
	}
}

// subscription returns the subscription to a type.
func (s *session) subscription(typeURL string) (*subscription, error) {
	if sub := s.subs[typeURL]; sub != nil {
		return sub, nil
	}
	if len(s.subs) == maxTypes {
		return nil, status.Errorf(codes.ResourceExhausted, "the stream has more than %d types", maxTypes)
	}
	sub := &subscription{typeURL: typeURL, content: newContent(s.variant)}
	s.subs[typeURL] = sub
	s.order = append(s.order, sub)
	return sub, nil
}

// takeUpstream takes an event of the control plane's stream.
func (s *session) takeUpstream(ctx context.Context, e event) error {
	switch {
	case e.opened != nil:
		s.up, s.introduced = e.opened, false
		s.stream++
		for _, sub := range s.order {
			s.enqueue(sub)
		}
	case e.response != nil:
		return s.takeResponse(ctx, e.envelope, e.response)
	default:
		s.up, s.next = nil, nil
		for _, sub := range s.order {
			sub.disconnected()
		}
		// Envoy accepts clusters when they have their endpoints. Until then it may wait for
		// endpoints that it holds.
		if c, e := s.subs[xdswire.ClusterType], s.subs[xdswire.EndpointType]; c != nil && e != nil && len(c.open) > 0 {
			e.content.forget()
		}
		// Before the first response, the proxy has nothing to keep and learns the reason.
		if c := status.Code(e.err); !s.responded && c != codes.Unavailable && c != codes.Unknown && c != codes.Canceled {
			return e.err
		}
	}
	return nil
}

// takeResponse passes a response to the proxy or to its handler.
func (s *session) takeResponse(ctx context.Context, e *envelope, m *message) error {
	s.counters.responses.Add(1)
	sub := s.subs[e.typeURL]
	switch {
	case sub == nil || !sub.requested:
		s.log.Warn("the control plane sent resources that were not requested, they are dropped", "type", e.typeURL)
		return nil
	case len(sub.open) >= maxOpen:
		s.up.cancel(fmt.Errorf("%d responses of %s have no answer", maxOpen, e.typeURL))
		return nil
	}
	s.responded = true
	r := response{s.stream, e}
	sub.open = append(sub.open, r)
	if sub.handler != nil {
		s.handle(ctx, sub, job{r, m})
		return nil
	}
	// Extensions without plugins wait, too, for those that came before them. A response without
	// plugins may replace all of them in the state of the world.
	if e.typeURL == xdswire.ExtensionType && (len(sub.jobs) > 0 || len(s.modules) > 0 || usesPlugins(m)) {
		s.handle(ctx, sub, job{r, m})
		return nil
	}
	return s.pass(r, m)
}

// pass passes a response to the proxy. It waits while the proxy does not read.
func (s *session) pass(r response, m *message) error {
	if err := s.down.SendMsg(withNonce(m, joinNonce(r.stream, r.nonce))); err != nil {
		return fmt.Errorf("pass a response on: %w", err)
	}
	return nil
}

// joinNonce returns the nonce for the proxy. It names the stream, because the nonces of
// two streams may be equal.
func joinNonce(stream uint64, nonce string) string {
	return strconv.FormatUint(stream, 36) + "." + nonce
}

func splitNonce(s string) (stream uint64, nonce string, ok bool) {
	number, nonce, found := strings.Cut(s, ".")
	stream, err := strconv.ParseUint(number, 36, 64)
	return stream, nonce, found && err == nil
}
