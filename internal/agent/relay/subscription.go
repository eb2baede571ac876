package relay

import (
	"maps"
	"slices"
	"strings"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// subscription is the subscription of a proxy to one type, across all streams to the control
// plane.
type subscription struct {
	typeURL string
	content content
	// handler takes the resources; nil passes them to the proxy.
	handler Handler

	// requested is set when the current stream to the control plane had the first request.
	requested bool
	// changed is set when the control plane must learn of changed names.
	changed bool
	// queued is set while the subscription waits in the session's queue.
	queued bool
	// open are the responses that the proxy has not answered, oldest first.
	open []response
	// answers are not sent yet.
	answers []answer
	// jobs are the responses for the handler; it has the first one.
	jobs []job
}

// response is a response that was passed to the proxy.
type response struct {
	stream uint64 // number of the control plane's stream
	*envelope
}

// answer is an ACK or, with a problem, a NACK.
type answer struct {
	nonce   string
	problem *rpcstatus.Status
}

// content is the state of a subscription in one variant of the protocol.
type content interface {
	// take takes a request of the proxy and reports whether names changed.
	take(r *request) (changed bool)
	// first completes the first request on a stream. It returns false if there is nothing to
	// request.
	first(r *request) bool
	// next completes a later request.
	next(r *request)
	// accepted notes that the proxy accepted a response.
	accepted(e *envelope)
	// doubted notes that the proxy may have used a part of a response, or nothing.
	doubted(e *envelope)
	// dropped notes, for a subscription to virtual hosts, that the proxy received route
	// configurations. Envoy drops the virtual hosts that came before their route configuration.
	dropped(routes *envelope)
	// forget means that the proxy may hold no version of its resources.
	forget()
	// again requests a resource again that the proxy has. It returns false if only a new stream
	// can do that.
	again(name string) bool
	// answer adds an answer to those not sent yet.
	answer(list []answer, a answer) []answer
	// count returns the number of names.
	count() int
}

func newContent(v xdswire.Variant) content {
	if v == xdswire.Delta {
		return &deltaContent{names: map[string]bool{}, add: map[string]bool{}, drop: map[string]bool{}, versions: map[string]string{}}
	}
	return &sotwContent{}
}

// answered takes the proxy's answer to the response with a nonce of a stream. Responses
// before it will not be answered.
func (s *subscription) answered(stream uint64, nonce string, problem *rpcstatus.Status) (known bool) {
	i := slices.IndexFunc(s.open, func(r response) bool { return r.stream == stream && r.nonce == nonce })
	if i < 0 {
		return false
	}
	for _, r := range s.open[:i] {
		s.content.doubted(r.envelope)
	}
	if problem == nil {
		s.content.accepted(s.open[i].envelope)
	} else {
		s.content.doubted(s.open[i].envelope)
	}
	s.open = slices.Delete(s.open, 0, i+1)
	return true
}

// disconnected forgets what belongs to a stream that has ended.
func (s *subscription) disconnected() {
	s.requested, s.answers = false, nil
	for _, r := range s.open {
		s.content.doubted(r.envelope)
	}
}

// request returns the next request to the control plane, or nil if there is none. An answer
// takes changed names with it.
func (s *subscription) request() *request {
	r := &request{typeURL: s.typeURL}
	if !s.requested {
		if !s.content.first(r) {
			return nil
		}
		s.requested, s.changed = true, false
		return r
	}
	if len(s.answers) > 0 {
		r.nonce, r.problem = s.answers[0].nonce, s.answers[0].problem
		s.answers = s.answers[1:]
	} else if !s.changed {
		return nil
	}
	s.changed = false
	s.content.next(r)
	return r
}

// deltaContent is the content of a subscription with incremental requests.
type deltaContent struct {
	started bool
	// names are subscribed; Wildcard is one of them. implicit means that the wildcard comes
	// from a first request without names.
	names    map[string]bool
	implicit bool
	// add and drop are changes of the names that are not sent yet.
	add, drop map[string]bool
	// versions holds the versions of the resources that the proxy has. An empty version stands for
	// one that is not known, so that the control plane sends the resource, or its removal.
	versions map[string]string
}

func (c *deltaContent) take(r *request) bool {
	if !c.started {
		c.started = true
		maps.Copy(c.versions, r.held)
		for name := range c.versions {
			if _, isPlugin := mesh.CutPluginPrefix(name); isPlugin {
				c.versions[name] = "" // this session must learn of its module
			}
		}
		if c.implicit = len(r.subscribe) == 0 && len(r.unsubscribe) == 0; c.implicit {
			c.names[xdswire.Wildcard] = true
			return true
		}
	}
	for _, name := range r.unsubscribe {
		delete(c.names, name)
		delete(c.add, name)
		c.drop[name] = true
		c.implicit = c.implicit && name != xdswire.Wildcard
	}
	for _, name := range r.subscribe {
		c.names[name], c.add[name] = true, true
		delete(c.drop, name)
		c.implicit = c.implicit && name != xdswire.Wildcard
	}
	if len(r.unsubscribe) > 0 && !c.names[xdswire.Wildcard] { // the proxy drops these resources
		maps.DeleteFunc(c.versions, func(name, _ string) bool { return !c.names[name] })
	}
	return len(c.add)+len(c.drop) > 0
}

func (c *deltaContent) first(r *request) bool {
	if len(c.names) == 0 {
		return false // it would mean the wildcard
	}
	c.next(r)
	r.subscribe, r.unsubscribe = nil, nil
	if !c.implicit || len(c.names) > 1 {
		r.subscribe = slices.Sorted(maps.Keys(c.names))
	}
	r.held = maps.Clone(c.versions)
	return true
}

func (c *deltaContent) next(r *request) {
	r.subscribe, r.unsubscribe = slices.Sorted(maps.Keys(c.add)), slices.Sorted(maps.Keys(c.drop))
	clear(c.add)
	clear(c.drop)
}

func (c *deltaContent) accepted(e *envelope) {
	for _, h := range e.held {
		c.hold(h.name, h.version)
	}
	for _, name := range e.removed {
		delete(c.versions, name)
	}
}

func (c *deltaContent) doubted(e *envelope) {
	for _, h := range e.held {
		c.hold(h.name, "")
	}
	for _, name := range e.removed {
		c.hold(name, "")
	}
}

func (c *deltaContent) hold(name, version string) {
	if c.names[name] || c.names[xdswire.Wildcard] {
		c.versions[name] = version
	}
}

func (c *deltaContent) dropped(routes *envelope) {
	for name := range c.versions {
		routesOf := name[:max(0, strings.LastIndexByte(name, '/'))]
		if slices.ContainsFunc(routes.held, func(h held) bool { return h.name == routesOf }) {
			c.versions[name] = ""
		}
	}
}

func (c *deltaContent) forget() {
	for name := range c.versions {
		c.versions[name] = ""
	}
}

func (c *deltaContent) again(name string) bool {
	if c.names[name] {
		c.add[name] = true
	}
	c.hold(name, "")
	return true
}

// answer keeps every answer, because the control plane waits for each.
func (c *deltaContent) answer(list []answer, a answer) []answer { return append(list, a) }

func (c *deltaContent) count() int { return len(c.names) + len(c.drop) }

// sotwContent is the content of a subscription whose requests hold all names.
type sotwContent struct {
	names   []string
	version string // accepted last
}

func (c *sotwContent) take(r *request) bool {
	changed := !slices.Equal(c.names, r.names)
	c.names, c.version = r.names, r.version
	return changed
}

func (c *sotwContent) first(r *request) bool {
	c.next(r)
	return true
}

func (c *sotwContent) next(r *request) { r.names, r.version = c.names, c.version }

func (c *sotwContent) accepted(e *envelope) { c.version = e.version }

func (c *sotwContent) doubted(*envelope) {}

func (c *sotwContent) dropped(*envelope) {}

func (c *sotwContent) forget() {}

func (c *sotwContent) again(string) bool { return false }

// answer keeps the newest answer, which replaces earlier ones. A NACK stays until it is
// sent: a repetition of its nonce is not an ACK.
func (c *sotwContent) answer(list []answer, a answer) []answer {
	if len(list) > 0 && list[0].nonce == a.nonce && a.problem == nil {
		a.problem = list[0].problem
	}
	return []answer{a}
}

func (c *sotwContent) count() int { return len(c.names) }
