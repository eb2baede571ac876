package xds

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// The model: proxies that behave like Envoy, without a network. Messages of each
// direction arrive in order, at random times. Snapshots, subscriptions, NACKs (of which
// a proxy may apply a part), reconnections and changes of views are random, too. In the
// end every proxy must hold the content of its views, and no cluster may wait for
// endpoints.

type modelProxy struct {
	t       *testing.T
	rng     *rand.Rand
	hub     *Hub
	name    string
	variant xdswire.Variant
	sess    *session

	toServer []any // *DiscoveryRequest, *DeltaDiscoveryRequest
	toProxy  []*xdswire.Frame

	held map[string]map[string]string // type → name → content
	// good is the part of held from accepted responses, version their versions.
	good    map[string]map[string]string
	version map[string]map[string]string // type → name → version (delta)
	nonce   map[string]string
	// accepted has the types with an accepted response.
	accepted map[string]string
	names    map[string]map[string]struct{} // EDS, RDS
	asked    map[string]bool                // types with a first request on this stream
	warming  map[string]struct{}            // clusters
	ever     map[string]bool                // type/content → accepted
	refuse   bool
	// said holds the last content of each name in a response on this stream, no all
	// contents that the proxy refused on it, took the types with an accepted response.
	said map[string]map[string]sentName
	no   map[string]map[string]struct{}
	took map[string]bool
}

// sentName is the part of a response about one name.
type sentName struct {
	content string // empty for a removal
	refused bool
	bare    bool // the response carried no resource that the proxy could name
}

func newModelProxy(t *testing.T, rng *rand.Rand, h *Hub, name string, v xdswire.Variant) *modelProxy {
	p := &modelProxy{
		t: t, rng: rng, hub: h, name: name, variant: v,
		held: make(map[string]map[string]string), good: make(map[string]map[string]string), version: make(map[string]map[string]string),
		accepted: make(map[string]string),
		names:    map[string]map[string]struct{}{"EDS": {}, "RDS": {"r0": {}}}, warming: make(map[string]struct{}),
	}
	for _, url := range xdswire.PushOrder[:4] {
		p.held[xdswire.ShortType(url)] = make(map[string]string)
		p.good[xdswire.ShortType(url)] = make(map[string]string)
		p.version[xdswire.ShortType(url)] = make(map[string]string)
	}
	p.ever = make(map[string]bool)
	p.connect()
	return p
}

// connect opens a new stream and requests everything again.
func (p *modelProxy) connect() {
	if p.sess != nil {
		p.hub.detach(p.sess.sub)
		if p.variant == xdswire.Delta {
			p.forgetPartly()
		}
	}
	node, err := p.hub.cfg.Generator.ParseNode(testNode(p.name), p.hub.cfg.Limits.MetadataBytes)
	if err != nil {
		p.t.Fatal(err)
	}
	sub := &subscriber{id: p.name, node: node, variant: p.variant}
	p.sess = &session{hub: p.hub, sub: sub, log: slog.New(slog.DiscardHandler), writer: &streamWriter{}, send: func(f *xdswire.Frame) error {
		p.checkSent(f)
		p.toProxy = append(p.toProxy, f)
		return nil
	}}
	sub.session = p.sess
	p.hub.attach(sub)
	p.toServer, p.toProxy = nil, nil
	p.said, p.no, p.took = make(map[string]map[string]sentName), make(map[string]map[string]struct{}), make(map[string]bool)
	for typ := range p.held {
		p.said[typ], p.no[typ] = make(map[string]sentName), make(map[string]struct{})
	}
	p.nonce, p.asked = make(map[string]string), make(map[string]bool)
	for _, typ := range []string{"CDS", "EDS", "LDS", "RDS"} {
		if typ == "CDS" || typ == "LDS" || len(p.names[typ]) > 0 {
			p.request(typ, nil, nil, "")
		}
	}
}

// forgetPartly reverts the applied parts of refused responses: in the delta variant a
// new stream does not report them, so no server can repair them.
func (p *modelProxy) forgetPartly() {
	for typ := range p.held {
		p.held[typ] = maps.Clone(p.good[typ])
	}
	p.names["EDS"] = make(map[string]struct{})
	for name := range p.held["CDS"] {
		p.names["EDS"][name] = struct{}{}
	}
	for name := range p.held["EDS"] {
		if _, ok := p.names["EDS"][name]; !ok {
			delete(p.held["EDS"], name)
			delete(p.good["EDS"], name)
			delete(p.version["EDS"], name)
		}
	}
	for name := range p.warming {
		if _, ok := p.names["EDS"][name]; !ok {
			delete(p.warming, name)
		}
	}
}

// request queues a request with the current names. In the delta variant it sends the
// given difference, or everything in the first request of a stream.
func (p *modelProxy) request(typ string, more, less []string, nack string) {
	p.send(typ, p.nonce[typ], more, less, nack)
}

func (p *modelProxy) send(typ, nonce string, more, less []string, nack string) {
	var detail *statuspb.Status
	if nack != "" {
		detail = &statuspb.Status{Message: nack}
	}
	names := slices.Sorted(maps.Keys(p.names[typ]))
	if p.variant == xdswire.SotW {
		p.toServer = append(p.toServer, &discoveryv3.DiscoveryRequest{
			TypeUrl: urlOf(typ), ResourceNames: names, ResponseNonce: nonce, ErrorDetail: detail, VersionInfo: p.accepted[typ],
		})
		return
	}
	r := &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: urlOf(typ), ResourceNamesSubscribe: more, ResourceNamesUnsubscribe: less, ErrorDetail: detail,
	}
	if !p.asked[typ] {
		p.asked[typ] = true
		r.ResourceNamesSubscribe, r.ResourceNamesUnsubscribe = names, nil
		r.InitialResourceVersions = maps.Clone(p.version[typ])
	} else {
		r.ResponseNonce = nonce
	}
	p.toServer = append(p.toServer, r)
}

// rename changes the names of a type.
func (p *modelProxy) rename(typ string, more, less []string) {
	for _, n := range less {
		delete(p.names[typ], n)
		delete(p.held[typ], n)
		delete(p.good[typ], n)
		delete(p.version[typ], n)
	}
	for _, n := range more {
		p.names[typ][n] = struct{}{}
	}
	if p.variant == xdswire.Delta {
		p.send(typ, "", more, less, "")
		return
	}
	p.request(typ, nil, nil, "")
}

// serverStep delivers the oldest request to the server.
func (p *modelProxy) serverStep() {
	if len(p.toServer) == 0 {
		return
	}
	r := p.toServer[0]
	p.toServer = p.toServer[1:]
	var err error
	switch r := r.(type) {
	case *discoveryv3.DiscoveryRequest:
		err = p.sess.sotw(r, nil)
	case *discoveryv3.DeltaDiscoveryRequest:
		err = p.sess.delta(r, nil)
	}
	if err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	p.flush()
}

func (p *modelProxy) flush() {
	if err := p.sess.flush(); err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	for i, t := range p.sess.types {
		a := p.sess.sub.assigned.Load()
		if len(t.force) > maxForce || t.held != nil && a != nil && a.types[i].served {
			p.t.Fatalf("%s: %s keeps %d names and %d versions", p.name, xdswire.PushOrder[i], len(t.force), len(t.held))
		}
	}
}

// proxyStep delivers the oldest response to the proxy.
func (p *modelProxy) proxyStep() {
	if len(p.toProxy) == 0 {
		return
	}
	f := p.toProxy[0]
	p.toProxy = p.toProxy[1:]
	b := f.Buffers().Materialize()
	full := make(map[string]string)
	var typ, version string
	var removed []string
	versions := make(map[string]string)
	if p.variant == xdswire.SotW {
		m := &discoveryv3.DiscoveryResponse{}
		if err := proto.Unmarshal(b, m); err != nil {
			p.t.Fatal(err)
		}
		typ = xdswire.ShortType(m.GetTypeUrl())
		p.nonce[typ], version = m.GetNonce(), m.GetVersionInfo()
		for _, a := range m.GetResources() {
			content := decode(p.t, a)
			name, _, _ := strings.Cut(content, ":")
			full[name] = content
		}
		if len(full) != len(m.GetResources()) {
			p.t.Fatalf("%s: a name stands twice in a response", p.name)
		}
		if typ == "CDS" || typ == "LDS" {
			removed = without(slices.Sorted(maps.Keys(p.held[typ])), slices.Collect(maps.Keys(full)))
		}
	} else {
		m := &discoveryv3.DeltaDiscoveryResponse{}
		if err := proto.Unmarshal(b, m); err != nil {
			p.t.Fatal(err)
		}
		typ = xdswire.ShortType(m.GetTypeUrl())
		p.nonce[typ] = m.GetNonce()
		removed = m.GetRemovedResources()
		for _, r := range m.GetResources() {
			full[r.GetName()], versions[r.GetName()] = decode(p.t, r.GetResource()), r.GetVersion()
			if slices.Contains(removed, r.GetName()) {
				p.t.Fatalf("%s: %s stands in a response and is removed by it", p.name, r.GetName())
			}
		}
	}
	nack := ""
	if p.refuse && p.rng.IntN(4) == 0 {
		nack = "no"
		// Sometimes it names the refused resource, perhaps a wrong one.
		for _, name := range slices.Sorted(maps.Keys(full)) {
			if p.rng.IntN(3) == 0 {
				nack = "Error adding/updating cluster(s) " + name + ": no"
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(full)) {
		// All proxies but one always refuse some contents, and sometimes name them.
		if p.refuse && p.name != "p3" && strings.HasSuffix(full[name], ".2") {
			nack = "no"
			if len(full)%3 > 0 {
				nack = "Error adding/updating cluster(s) " + name + ": no"
			}
		}
	}
	p.remember(typ, full, removed, nack != "")
	taken := func() bool { return nack == "" || p.rng.IntN(2) == 0 }
	var more, less []string
	for _, name := range slices.Sorted(maps.Keys(full)) {
		if typ == "EDS" {
			delete(p.warming, name) // even a refused assignment ends the wait
		}
		_, watched := p.names[typ][name]
		if !taken() || !watched && (typ == "EDS" || typ == "RDS") {
			continue
		}
		before, had := p.held[typ][name]
		p.held[typ][name] = full[name]
		if nack == "" {
			p.good[typ][name], p.version[typ][name] = full[name], versions[name]
		}
		if typ == "CDS" && before != full[name] {
			p.warming[name] = struct{}{}
			if !had {
				more = append(more, name)
			} else if p.variant == xdswire.SotW {
				more = append(more, name) // request it again; the names do not change
			}
		}
	}
	for _, name := range removed {
		if typ == "EDS" {
			delete(p.warming, name)
		}
		if !taken() {
			continue
		}
		if _, had := p.held[typ][name]; had && typ == "CDS" {
			less = append(less, name)
			delete(p.warming, name)
		}
		delete(p.held[typ], name)
		if nack == "" {
			delete(p.good[typ], name)
			delete(p.version[typ], name)
		}
	}
	if nack == "" {
		p.accepted[typ] = cmp.Or(version, "some")
		for _, content := range full {
			p.ever[typ+"/"+content] = true
		}
	}
	p.request(typ, nil, nil, nack)
	if len(more) > 0 || len(less) > 0 {
		p.rename("EDS", more, less)
	}
}

// remember records the content of a response.
func (p *modelProxy) remember(typ string, full map[string]string, removed []string, refused bool) {
	bare := true
	for name, content := range full {
		bare = bare && p.variant == xdswire.SotW && p.good[typ][name] == content
	}
	for name, content := range full {
		p.said[typ][name] = sentName{content, refused, bare}
		if refused {
			p.no[typ][name+"="+content] = struct{}{}
		}
	}
	p.took[typ] = p.took[typ] || !refused
	for _, name := range removed {
		p.said[typ][name] = sentName{"", refused, bare}
	}
}

// checkSent checks that the proxy is sent no resource of another proxy's view, unless
// it accepted the same bytes before.
func (p *modelProxy) checkSent(f *xdswire.Frame) {
	p.t.Helper()
	var m discoveryv3.DiscoveryResponse
	var d discoveryv3.DeltaDiscoveryResponse
	var bodies []*anypb.Any
	b, url := f.Buffers().Materialize(), ""
	if p.variant == xdswire.SotW {
		if err := proto.Unmarshal(b, &m); err != nil {
			p.t.Fatal(err)
		}
		url, bodies = m.GetTypeUrl(), m.GetResources()
	} else {
		if err := proto.Unmarshal(b, &d); err != nil {
			p.t.Fatal(err)
		}
		url = d.GetTypeUrl()
		for _, r := range d.GetResources() {
			bodies = append(bodies, r.GetResource())
		}
	}
	typ := xdswire.ShortType(url)
	views := p.sess.sub.assigned.Load().types[typeIndex(url)]
	shared, _ := views.views[0].view.(testView)
	for _, body := range bodies {
		content := decode(p.t, body)
		if p.ever[typ+"/"+content] {
			continue
		}
		_, value, _ := strings.Cut(content, ":")
		if view, _, ok := strings.Cut(value, "."); ok && view != shared.name && view != p.name {
			p.t.Fatalf("%s: %s is sent of another view, not %s", p.name, content, shared.name)
		}
	}
}

// excused reports whether the proxy's own NACKs explain a missing resource.
func (p *modelProxy) excused(typ, name, want string) bool {
	i := typeIndex(urlOf(typ))
	// It refused this content, and the server has quarantined it.
	if _, ok := p.no[typ][name+"="+want]; ok {
		p.sess.sub.mu.Lock()
		defer p.sess.sub.mu.Unlock()
		for _, r := range p.sess.sub.status[i].quarantined {
			if r.Resource == name {
				return true
			}
		}
	}
	// It refused a response that held only removals and accepted content.
	s := p.said[typ][name]
	if s.refused && s.content == want && s.bare {
		return true
	}
	// It refused the first list after a reconnection; see docs/xds.md.
	return s.refused && s.content == want && p.variant == xdswire.SotW && fullList(i) && !p.took[typ]
}

// settle delivers all messages.
func (p *modelProxy) settle() {
	for range 1000 {
		p.flush()
		p.hub.deliver() // the views that it requests come first
		p.flush()
		if len(p.toServer) == 0 && len(p.toProxy) == 0 {
			return
		}
		p.serverStep()
		p.proxyStep()
	}
	p.t.Fatalf("%s: messages go back and forth without end", p.name)
}

// want returns the requested content of the proxy's views.
func (p *modelProxy) want(w *testMesh, typ string) map[string]string {
	shared := "shared"
	if pod := w.s.Pods.Get(p.name); pod != nil {
		shared = pod.Node
	}
	want := make(map[string]string)
	for key, svc := range w.s.Services.All() {
		parts := strings.SplitN(key, "/", 3)
		if parts[0] != typ || parts[1] != shared && parts[1] != p.name {
			continue
		}
		if _, ok := p.names[typ][svc.Host]; ok || typ == "CDS" || typ == "LDS" {
			want[svc.Host] = svc.Name
		}
	}
	return want
}

// check compares the proxy's content with its views.
func (p *modelProxy) check(w *testMesh) {
	p.t.Helper()
	for _, typ := range []string{"CDS", "EDS", "LDS", "RDS"} {
		want := p.want(w, typ)
		got := maps.Clone(p.held[typ])
		for name, content := range got {
			// A resource that never existed or was removed may remain, empty or
			// unchanged: nothing refers to it, or Envoy ignores its removal.
			gone := typ == "RDS" || typ == "EDS" && p.variant == xdswire.SotW
			if _, ok := want[name]; !ok && gone {
				delete(got, name)
				_ = content
			}
		}
		for _, name := range sortedUnique(slices.Collect(maps.Keys(got)), slices.Collect(maps.Keys(want))) {
			if got[name] != want[name] && !p.excused(typ, name, want[name]) {
				p.t.Errorf("%s %s %s: %s is %q, want %q", p.name, p.variant, typ, name, got[name], want[name])
			}
		}
		if w := p.sess.types[typeIndex(urlOf(typ))].quarantine; w != nil {
			for name, r := range w.names {
				if r.entry == nil {
					p.t.Errorf("%s %s %s: %s is withheld though nothing blames it", p.name, p.variant, typ, name)
				}
			}
		}
	}
	for name := range p.warming {
		// It may have refused the cluster's endpoints, which were then removed: nothing
		// is sent.
		gone := p.said["EDS"][name].refused && p.variant == xdswire.SotW && p.want(w, "EDS")[name] == ""
		if !gone && !p.excused("CDS", name, p.want(w, "CDS")[name]) && !p.excused("EDS", name, p.want(w, "EDS")[name]) {
			p.t.Errorf("%s %s: %s is still warming", p.name, p.variant, name)
		}
	}
}

// shake makes one random change of the mesh.
func (w *testMesh) shake(rng *rand.Rand, proxies []*modelProxy) {
	if rng.IntN(12) == 0 {
		w.view(proxies[rng.IntN(len(proxies))].name, []string{"shared", "other"}[rng.IntN(2)])
		return
	}
	typ := []string{"CDS", "EDS", "LDS", "RDS"}[rng.IntN(4)]
	prefix := map[string]string{"CDS": "c", "EDS": "c", "LDS": "l", "RDS": "r"}[typ]
	name := fmt.Sprintf("%s%d", prefix, rng.IntN(6))
	view := []string{"shared", "other"}[rng.IntN(2)]
	if rng.IntN(5) == 0 {
		view = proxies[rng.IntN(len(proxies))].name
		name = "own-" + name
	}
	content := name + ":0" // the same in every view
	if n := rng.IntN(3); n > 0 {
		content = fmt.Sprintf("%s:%s.%d", name, view, n)
	}
	if rng.IntN(4) == 0 {
		content = ""
	}
	w.set(typ, view, name, content)
}

func TestModel(t *testing.T) {
	seeds := []uint64{6859, 655, 1543, 3785, 7059, 9089, 9358} // each found a fault once
	for seed := range uint64(300) {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			steps := 0
			runModel(t, rand.New(rand.NewPCG(seed, 1)), func() bool {
				steps++
				return steps <= 400
			})
		})
		if t.Failed() {
			return
		}
	}
}

// byteSource turns the bytes of a fuzz input into random numbers. When they are used
// up, it continues with a fixed random sequence.
type byteSource struct {
	bytes []byte
	rest  *rand.PCG
}

// Uint64 implements rand.Source.
func (s *byteSource) Uint64() uint64 {
	if len(s.bytes) == 0 {
		return s.rest.Uint64()
	}
	b := s.bytes[0]
	s.bytes = s.bytes[1:]
	return uint64(b) * 0x0101010101010101 // small numbers come from the highest bits, or the lowest
}

// FuzzModel lets the input decide the events of the model: sends, receipts, changes and
// NACKs.
func FuzzModel(f *testing.F) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 2))
		input := make([]byte, 100<<seed)
		for i := range input {
			input[i] = byte(rng.Uint32())
		}
		f.Add(input)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		source := &byteSource{bytes: input[:min(len(input), 8<<10)], rest: rand.NewPCG(0, 3)}
		runModel(t, rand.New(source), func() bool { return len(source.bytes) > 0 })
	})
}

// runModel runs the model while more returns true.
func runModel(t *testing.T, rng *rand.Rand, more func() bool) {
	w := newTestMesh()
	h := newUnstartedHub()
	h.Update(w.take())
	var proxies []*modelProxy
	for i := range 4 {
		proxies = append(proxies, newModelProxy(t, rng, h, fmt.Sprintf("p%d", i), xdswire.Variant(i%2)))
		proxies[i].refuse = true
	}
	for more() {
		p := proxies[rng.IntN(len(proxies))]
		switch n := rng.IntN(40); {
		case n == 0:
			p.connect()
		case n < 8:
			w.shake(rng, proxies)
			h.Update(w.take())
		case n < 14:
			h.deliver()
		case n < 16:
			name := fmt.Sprintf("r%d", rng.IntN(8))
			if _, ok := p.names["RDS"][name]; !ok {
				p.rename("RDS", []string{name}, nil)
			} else if len(p.names["RDS"]) > 1 {
				p.rename("RDS", nil, []string{name})
			}
		case n < 20:
			p.flush()
		case n < 30:
			p.serverStep()
		default:
			p.proxyStep()
		}
	}
	for _, p := range proxies {
		p.refuse = false
	}
	h.deliver()
	for _, p := range proxies {
		p.settle()
	}
	for _, p := range proxies {
		p.check(w)
		p.hub.detach(p.sess.sub)
	}
	h.deliver()
	if len(h.views.all) != 0 || len(h.units) != 0 || len(h.subs.all) != 0 {
		t.Errorf("left over: %d views, %d units, %d streams", len(h.views.all), len(h.units), len(h.subs.all))
	}
}
