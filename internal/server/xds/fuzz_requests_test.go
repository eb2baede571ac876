package xds

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// FuzzRequests plays requests, made from the input, to a session of each variant, with
// changes of the mesh in between. After each step the session's state of each type must
// equal the state of a model of the protocol, and the model must allow each response.
// In the end the proxy holds the contents of the mesh.
func FuzzRequests(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 1, 1, 0, 2, 1, 1, 3, 1})
	f.Add([]byte{1, 3, 0, 0, 1, 7, 1, 0, 0, 0, 0, 0, 1, 1, 2, 3})
	f.Add([]byte{9, 9, 9, 9, 5, 0, 1, 2, 255, 128, 64, 32})
	f.Fuzz(func(t *testing.T, input []byte) {
		for _, v := range []xdswire.Variant{xdswire.SotW, xdswire.Delta} {
			newRequestModel(t, v, input[:min(len(input), 1<<10)]).play()
		}
	})
}

var fuzzNames = [...]string{"a", "b", "c", "r", "*", "", "é", "nowhere"}

// requestModel holds a session and its required state by the rules of the protocol. It
// shares no code with the session.
type requestModel struct {
	t       *testing.T
	variant xdswire.Variant
	input   []byte
	hub     *Hub
	world   *testMesh
	sess    *session
	types   [numTypes]modelType
	// content is the last content passed to the hub: type, name, content.
	content [numTypes]map[string]string
	// ever holds all contents that a name ever had.
	ever  [numTypes]map[string]bool
	nonce map[string]bool // all nonces sent
	sent  [numTypes]int
}

// modelType is the model's state of one type.
type modelType struct {
	watched, wildcard, named bool
	names                    map[string]bool
	nonce                    string
	inflight                 bool
	nacks, expired           int
	// refused is set after a NACK: later responses may then be older or incomplete.
	refused bool
	// settled is set if nothing is due: the proxy has everything that it requested.
	settled bool
	// held is the content of the proxy, without the response that it has not answered.
	held    map[string]string
	pending *modelResponse
}

type modelResponse struct {
	resources map[string]string
	removed   []string
	full      bool
}

func newRequestModel(t *testing.T, v xdswire.Variant, input []byte) *requestModel {
	m := &requestModel{t: t, variant: v, input: input, hub: newUnstartedHub(), world: newTestMesh(), nonce: make(map[string]bool)}
	m.hub.cfg.Generator = generatorOf(xdswire.VirtualHostType, xdswire.SecretType, xdswire.ExtensionType, xdswire.NameTableType, xdswire.ProxyConfigType, xdswire.BootstrapType)
	for i := range m.types {
		m.types[i].names, m.types[i].held = make(map[string]bool), make(map[string]string)
		m.content[i], m.ever[i] = make(map[string]string), make(map[string]bool)
		for _, name := range fuzzNames[:2] {
			m.set(i, name, name+":0")
		}
	}
	m.hub.Update(m.world.take())
	m.sess = newTestSession(t, m.hub, "p", v, m.receive)
	m.deliver()
	return m
}

func (m *requestModel) next() byte {
	if len(m.input) == 0 {
		return 0
	}
	c := m.input[0]
	m.input = m.input[1:]
	return c
}

func (m *requestModel) pick(bits byte) (names []string) {
	for i, n := range fuzzNames {
		if bits&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

// set changes the mesh; own resources are in a view that no other proxy has.
func (m *requestModel) set(i int, name, content string) {
	view := "shared"
	if name == "b" {
		view = "p"
	}
	m.world.set(typeName(i), view, name, content)
	if m.content[i][name] = content; content == "" {
		delete(m.content[i], name)
	}
	m.ever[i][content] = true
}

func (m *requestModel) play() {
	for len(m.input) > 0 {
		op := m.next()
		if i := int(op) % (numTypes + 1); i < numTypes {
			m.request(i, op)
		} else if err := m.unknown(); err != nil {
			m.t.Fatal(err)
		}
		m.flush()
		if op%5 == 0 {
			m.set(cds, "a", fmt.Sprintf("a:%d", m.next()))
			name := fuzzNames[m.next()%4]
			m.set(int(op/5)%numTypes, name, []string{"", name + ":1", name + ":2"}[m.next()%3])
		}
		if op%3 == 0 {
			m.deliver()
		}
	}
	m.finish()
}

// deliver runs the hub, and everything is sent.
func (m *requestModel) deliver() {
	for i := range m.types {
		m.types[i].settled = false
	}
	m.hub.Update(m.world.take())
	m.hub.deliver()
	m.flush()
	m.hub.deliver() // demands that the session posted by that
	before := m.sent
	m.flush()
	for i := range m.types {
		m.types[i].settled = before == m.sent && !m.types[i].inflight
	}
}

func (m *requestModel) flush() {
	if err := m.sess.flush(); err != nil {
		m.t.Fatal(err)
	}
	m.compare()
}

func (m *requestModel) unknown() error {
	const url = "type.googleapis.com/unknown"
	if m.variant == xdswire.Delta {
		return m.sess.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResourceNamesSubscribe: m.pick(m.next())}, nil)
	}
	return m.sess.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: url, ResourceNames: m.pick(m.next())}, nil)
}

// request makes one request from the input and plays it to the session and the model.
func (m *requestModel) request(i int, op byte) {
	t := &m.types[i]
	nonces := []string{"", "stale", "1", "2", t.nonce, t.nonce}
	nonce := nonces[int(op>>3)%len(nonces)]
	before, quiet := m.sent[i], false
	if m.variant == xdswire.Delta {
		r := &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: xdswire.PushOrder[i], ResponseNonce: nonce,
			ResourceNamesSubscribe: m.pick(m.next()), ResourceNamesUnsubscribe: m.pick(m.next()),
		}
		if op&1 != 0 {
			r.InitialResourceVersions = map[string]string{"a": "x", fuzzNames[m.next()%8]: "y"}
		}
		r.ErrorDetail = m.errorOf(m.next())
		quiet = m.delta(t, i, r)
		m.check(m.sess.delta(r, nil))
	} else {
		r := &discoveryv3.DiscoveryRequest{
			TypeUrl: xdswire.PushOrder[i], ResponseNonce: nonce, ResourceNames: m.pick(m.next()), ErrorDetail: m.errorOf(m.next()),
		}
		quiet = m.sotw(t, i, r)
		m.check(m.sess.sotw(r, nil))
	}
	quiet = quiet && t.settled && !t.refused
	if !quiet {
		t.settled = false
	}
	if i == cds {
		m.types[eds].settled = false // endpoints are sent again
	}
	m.flush()
	if quiet && m.sent[i] != before {
		m.t.Fatalf("%s: an answer to a request that asks for nothing", m.name(i))
	}
}

func (m *requestModel) check(err error) {
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *requestModel) name(i int) string {
	return m.variant.String() + " " + typeName(i)
}

func (m *requestModel) errorOf(b byte) *statuspb.Status {
	if b < 200 {
		return nil
	}
	return &statuspb.Status{Message: "in route " + fuzzNames[b%8]}
}

// sotw models a request of the state-of-the-world variant. It reports whether the
// request needs no answer.
func (m *requestModel) sotw(t *modelType, i int, r *discoveryv3.DiscoveryRequest) (quiet bool) {
	m.answered(t, r.GetResponseNonce(), r.GetErrorDetail() != nil, false)
	names := make(map[string]bool)
	for _, n := range r.GetResourceNames() {
		names[n] = true
	}
	wildcard := names["*"]
	delete(names, "*")
	t.named = t.named || len(r.GetResourceNames()) > 0
	if len(r.GetResourceNames()) == 0 && fullList(i) {
		wildcard = !t.named
	}
	switch {
	case !wildcard && len(names) == 0:
		*t = modelType{named: t.named, nacks: t.nacks, expired: t.expired, held: make(map[string]string)}
		return true
	case !t.watched || r.GetResponseNonce() == "":
		*t = modelType{
			watched: true, named: t.named, wildcard: wildcard, names: names,
			nacks: t.nacks, expired: t.expired, held: make(map[string]string),
		}
		return false
	case r.GetResponseNonce() != t.nonce:
		t.expired++
		for n := range t.names {
			if !wildcard && !names[n] {
				delete(t.names, n)
			}
		}
		return true
	}
	m.answered(t, r.GetResponseNonce(), false, r.GetErrorDetail() == nil)
	quiet = t.wildcard == wildcard && maps.Equal(t.names, names) && r.GetErrorDetail() == nil
	if !wildcard {
		maps.DeleteFunc(t.held, func(n, _ string) bool { return !names[n] })
	}
	t.wildcard, t.names = wildcard, names
	return quiet && i != eds // a request for endpoints may get another answer because of clusters
}

// delta models a request of the delta variant.
func (m *requestModel) delta(t *modelType, i int, r *discoveryv3.DeltaDiscoveryRequest) (quiet bool) {
	m.answered(t, r.GetResponseNonce(), r.GetErrorDetail() != nil, false)
	more, less := r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe()
	if !t.watched {
		wildcard := slices.Contains(more, "*") || len(more)+len(less) == 0 && fullList(i) || i == vhds
		*t = modelType{
			watched: true, wildcard: wildcard, names: make(map[string]bool),
			nacks: t.nacks, expired: t.expired, held: make(map[string]string),
		}
		for n := range r.GetInitialResourceVersions() {
			if !wildcard {
				t.names[n] = true
			}
			if i != vhds || m.sess.hosts.mode != inlineHosts { // whose proxies hold no virtual hosts
				t.held[n] = "of an earlier stream"
			}
		}
		for _, n := range more {
			t.names[n] = true
		}
		delete(t.names, "*")
		delete(t.held, "*")
		return false
	}
	switch r.GetResponseNonce() {
	case "":
	case t.nonce:
		m.answered(t, r.GetResponseNonce(), false, r.GetErrorDetail() == nil)
	default:
		t.expired++
	}
	for _, n := range less {
		if t.names[n] || n == "*" {
			delete(t.held, n)
		}
		delete(t.names, n)
		t.wildcard = t.wildcard && n != "*"
	}
	for _, n := range more {
		if n == "*" {
			t.wildcard = true
			continue
		}
		t.names[n] = true
	}
	if !t.wildcard {
		maps.DeleteFunc(t.held, func(n, _ string) bool { return !t.names[n] })
	}
	return len(more)+len(less) == 0 && i != eds
}

// answered models a NACK or an ACK of the response in flight.
func (m *requestModel) answered(t *modelType, nonce string, nack, ack bool) {
	if nack {
		t.nacks++
	}
	if !t.inflight || nonce != t.nonce || !nack && !ack {
		return
	}
	if t.inflight = false; nack {
		t.refused, t.pending = true, nil
		return
	}
	p := t.pending
	t.pending = nil
	if p.full {
		clear(t.held)
	}
	maps.Copy(t.held, p.resources)
	for _, n := range p.removed {
		delete(t.held, n)
	}
}

// compare compares the session with the model, type by type.
func (m *requestModel) compare() {
	for i := range m.types {
		t, is := &m.types[i], &m.sess.types[i]
		if t.watched != is.watched || t.wildcard != is.want.Wildcard || t.inflight != is.inflight || t.nonce != is.nonce ||
			!slices.Equal(slices.Sorted(maps.Keys(t.names)), is.want.Names.Names()) {
			m.t.Fatalf("%s: the session has watched %v wildcard %v names %q in flight %v nonce %q, want %v %v %q %v %q", m.name(i),
				is.watched, is.want.Wildcard, is.want.Names.Names(), is.inflight, is.nonce,
				t.watched, t.wildcard, slices.Sorted(maps.Keys(t.names)), t.inflight, t.nonce)
		}
		if n := countOf(m.t, m.hub.cfg.Metrics.nacks[i]); n != t.nacks {
			m.t.Fatalf("%s: %d NACKs are counted, want %d", m.name(i), n, t.nacks)
		}
		if n := countOf(m.t, m.hub.cfg.Metrics.expired[i]); n != t.expired {
			m.t.Fatalf("%s: %d stale nonces are counted, want %d", m.name(i), n, t.expired)
		}
		if n := countOf(m.t, m.hub.cfg.Metrics.sent[i]); n != m.sent[i] {
			m.t.Fatalf("%s: %d responses are counted, want %d", m.name(i), n, m.sent[i])
		}
		if len(is.force) > maxForce || len(is.doubt) > 2*len(fuzzNames) {
			m.t.Fatalf("%s: %d names are forced, %d in doubt", m.name(i), len(is.force), len(is.doubt))
		}
	}
}

// receive checks a response.
func (m *requestModel) receive(f *xdswire.Frame) error {
	r := &modelResponse{resources: make(map[string]string)}
	var url, nonce, version string
	b, count := f.Buffers().Materialize(), 0
	if m.variant == xdswire.Delta {
		d := &discoveryv3.DeltaDiscoveryResponse{}
		m.check(proto.Unmarshal(b, d))
		url, nonce, version, r.removed, count = d.GetTypeUrl(), d.GetNonce(), d.GetSystemVersionInfo(), d.GetRemovedResources(), len(d.GetResources())
		for _, a := range d.GetResources() {
			r.resources[a.GetName()] = decode(m.t, a.GetResource())
		}
	} else {
		d := &discoveryv3.DiscoveryResponse{}
		m.check(proto.Unmarshal(b, d))
		url, nonce, version, count = d.GetTypeUrl(), d.GetNonce(), d.GetVersionInfo(), len(d.GetResources())
		for _, a := range d.GetResources() {
			content := decode(m.t, a)
			name, _, _ := strings.Cut(content, ":")
			r.resources[name] = content
		}
	}
	i := typeIndex(url)
	t := &m.types[i]
	r.full = m.variant == xdswire.SotW && fullList(i)
	switch {
	case !t.watched || t.inflight:
		m.t.Fatalf("%s: a response though watched %v, in flight %v", m.name(i), t.watched, t.inflight)
	case nonce == "" || m.nonce[nonce]:
		m.t.Fatalf("%s: nonce %q is not new", m.name(i), nonce)
	case count != len(r.resources):
		m.t.Fatalf("%s: %d resources of %d names", m.name(i), count, len(r.resources))
	case !t.refused && version != m.version(i):
		m.t.Fatalf("%s: version %s, want %s", m.name(i), version, m.version(i))
	}
	m.judge(i, r)
	m.nonce[nonce] = true
	m.sent[i]++
	t.nonce, t.inflight, t.pending = nonce, true, r
	if i == cds {
		m.types[eds].settled = false
	}
	return nil
}

// judge checks the content of a response name by name.
func (m *requestModel) judge(i int, r *modelResponse) {
	t, shown := &m.types[i], m.shown(i)
	for name, content := range r.resources {
		fallback := content == name+":fallback" && shown[name] == "" && (i == rds || i == eds && m.variant == xdswire.SotW)
		switch {
		case !t.wildcard && !t.names[name]:
			m.t.Fatalf("%s: %q is sent, which nobody asked for", m.name(i), name)
		case fallback, content == shown[name], t.refused && m.ever[i][content]:
		default:
			m.t.Fatalf("%s: %q is %q, want %q", m.name(i), name, content, shown[name])
		}
		if slices.Contains(r.removed, name) {
			m.t.Fatalf("%s: %q is sent and removed at once", m.name(i), name)
		}
	}
	for _, name := range r.removed {
		if i == sds || i == ecds || shown[name] != "" && !t.refused {
			m.t.Fatalf("%s: %q is removed, and is %q", m.name(i), name, shown[name])
		}
	}
	for name := range shown {
		if _, ok := r.resources[name]; r.full && !t.refused && !ok && (t.wildcard || t.names[name]) {
			m.t.Fatalf("%s: %q is missing in a full list", m.name(i), name)
		}
	}
}

// shown returns the content of the hub's views, which may lag behind the mesh.
func (m *requestModel) shown(i int) map[string]string {
	out := make(map[string]string)
	a := m.sess.sub.assigned.Load().types[i]
	for _, v := range a.views {
		if v == nil {
			continue
		}
		for r := range v.state.Load().list().All {
			body, err := r.Any()
			m.check(err)
			out[r.Name] = decode(m.t, body)
		}
	}
	return out
}

// version returns the version of the hub's views, computed from their content.
func (m *requestModel) version(i int) string {
	var e xdswire.Encoder
	var sum uint64
	for name, content := range m.shown(i) {
		r, err := e.Resource(xdswire.PushOrder[i], name, wrapperspb.String(content))
		m.check(err)
		sum += xdswire.SharedList(r).Sum()
	}
	return versionInfo(sum)
}

// finish changes everything to end all quarantines, acknowledges all responses and
// compares the proxy with the mesh.
func (m *requestModel) finish() {
	m.settle()
	for i := range m.types {
		for name, content := range maps.Clone(m.content[i]) {
			m.set(i, name, content+"!")
		}
	}
	m.settle()
	for i := range m.types {
		t := &m.types[i]
		for name, content := range m.content[i] {
			if t.watched && (t.wildcard || t.names[name]) && t.held[name] != content {
				m.t.Fatalf("%s: in the end the proxy has %q of %q, want %q", m.name(i), t.held[name], name, content)
			}
		}
		for name, content := range t.held {
			removable := m.variant == xdswire.Delta && i != sds && i != ecds || m.variant == xdswire.SotW && fullList(i)
			if m.content[i][name] == "" && removable && content != name+":fallback" {
				m.t.Fatalf("%s: in the end the proxy has %q of %q, which is gone", m.name(i), content, name)
			}
		}
	}
	m.hub.detach(m.sess.sub)
	m.hub.deliver()
	if n := len(m.hub.views.all) + len(m.hub.units) + len(m.hub.subs.all) + len(m.hub.subs.byPod) + len(m.hub.subs.byNamespace); n != 0 {
		m.t.Fatalf("%d views, units and streams are left over", n)
	}
}

// settle acknowledges responses until none arrives.
func (m *requestModel) settle() {
	for range 200 {
		before := m.sent
		m.deliver()
		open := false
		for i := range m.types {
			if open = open || m.types[i].inflight; m.types[i].inflight {
				m.ack(i)
			}
		}
		if before == m.sent && !open {
			return
		}
	}
	m.t.Fatal("responses come without end")
}

func (m *requestModel) ack(i int) {
	t := &m.types[i]
	if m.variant == xdswire.Delta {
		r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.PushOrder[i], ResponseNonce: t.nonce}
		m.delta(t, i, r)
		m.check(m.sess.delta(r, nil))
		return
	}
	names := slices.Collect(maps.Keys(t.names))
	if t.wildcard && (len(names) > 0 || t.named) {
		names = append(names, "*")
	}
	r := &discoveryv3.DiscoveryRequest{TypeUrl: xdswire.PushOrder[i], ResponseNonce: t.nonce, ResourceNames: names}
	m.sotw(t, i, r)
	m.check(m.sess.sotw(r, nil))
}
