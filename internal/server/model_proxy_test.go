package server

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// modelTypes are the types that a proxy asks for.
var modelTypes = []string{xdswire.ClusterType, xdswire.EndpointType, xdswire.ListenerType, xdswire.RouteType}

// modelProxy is a proxy of a model. It checks of every response that
//   - it does not show an older snapshot than a response before;
//   - it has nothing of private services of another namespace;
//   - it does not remove a cluster that was always in the model, and does not empty an
//     assignment that was never empty;
//   - while nothing changes, versions stay, and resources that the proxy reported are not
//     sent again.
type modelProxy struct {
	*model
	number    int
	node      *corev3.Node
	namespace string
	delta     bool
	router    bool
	curious   bool        // asks for endpoints of private services of others
	discovers bool        // gets virtual hosts one by one
	refuses   bool        // at times
	naughty   atomic.Bool // refuses now
	cancel    context.CancelFunc
	done      chan struct{}

	mu      sync.Mutex
	awake   *sync.Cond // dozing or ended changed
	dozing  bool
	forget  bool // starts from nothing at its next stream
	end     context.CancelFunc
	stream  *modelStream
	state   map[string]map[string]modelResource
	infos   map[string]string // version_info of what was accepted, by type
	ticks   map[string]int    // newest taken, by type
	still   bool              // nothing changes
	spared  int               // resources held over the start of a stream and not sent again
	routes  []string
	nothing map[string]bool // clusters of which the endpoints are not wanted
	hosts   []string        // virtual hosts that it requests; nil for all
	talk    []string        // the last events of its streams, for what goes wrong
}

// errorf is for callers that hold the lock, and for the proxy's own goroutine.
func (p *modelProxy) errorf(format string, args ...any) {
	p.t.Helper()
	p.model.errorf("%s\nit had:\n  %s", fmt.Sprintf(format, args...), strings.Join(p.talk, "\n  "))
}

func (p *modelProxy) note(format string, args ...any) {
	p.talk = append(p.talk[max(0, len(p.talk)-40):], fmt.Sprintf(format, args...))
}

type modelResource struct{ version, body string }

// modelStream is one stream of a proxy.
type modelStream struct {
	send     func(typ, nonce string, node *corev3.Node, refusal *status.Status) error
	nonces   map[string]string
	watched  map[string][]string // delta: names by type
	answered map[string]bool
}

// modelRoles is the number of different proxies.
const modelRoles = 9

func newModelProxy(m *model, number int) *modelProxy {
	role := number % modelRoles
	p := &modelProxy{
		model: m, number: number, delta: role%2 == 1, namespace: fmt.Sprintf("ns%d", role%3),
		router: role == 8, curious: role == 6 || role == 7, refuses: role == 1 || role == 4, discovers: role == 5 || role == 7,
		done: make(chan struct{}), routes: []string{"80"}, nothing: make(map[string]bool),
	}
	typ, mode := "sidecar", "REDIRECT"
	if p.router {
		typ, p.namespace, p.routes = "router", "istio-system", nil
	}
	if role == 3 {
		mode, p.routes = "NONE", nil
	}
	md, err := structpb.NewStruct(map[string]any{"CLUSTER_ID": "cluster1", "NAMESPACE": p.namespace, "INTERCEPTION_MODE": mode})
	if err != nil {
		m.t.Fatal(err)
	}
	p.node = &corev3.Node{
		Id: fmt.Sprintf("%s~10.0.0.%d~p%d.%s~%s.svc.cluster.local", typ, number+1, number, p.namespace, p.namespace), Metadata: md,
	}
	if p.discovers {
		discovers(p.node)
	}
	if p.discovers && m.onDemand {
		p.hosts = []string{"80/stable-0.ns0.svc.cluster.local"}
	}
	p.begin()
	return p
}

// begin starts the proxy, which reconnects until it is closed.
func (p *modelProxy) begin() {
	p.awake, p.ticks = sync.NewCond(&p.mu), make(map[string]int)
	p.clear()
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.end = cancel, func() {}
	go func() {
		defer close(p.done)
		for ctx.Err() == nil {
			p.once(ctx)
		}
	}()
}

// twin returns a proxy like p without resources.
func (p *modelProxy) twin() *modelProxy {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := &modelProxy{
		model: p.model, number: p.number, node: p.node, namespace: p.namespace, delta: p.delta, router: p.router,
		done: make(chan struct{}), routes: p.routes, nothing: maps.Clone(p.nothing), discovers: p.discovers, hosts: p.hosts,
	}
	o.begin()
	return o
}

func (p *modelProxy) String() string { return fmt.Sprintf("proxy %d (%s)", p.number, p.node.Id) }

func (p *modelProxy) close() {
	p.cancel()
	p.wakeUp()
	<-p.done
}

func (p *modelProxy) clear() {
	p.forget = false
	p.state, p.infos = make(map[string]map[string]modelResource), make(map[string]string)
	for _, t := range p.types() {
		p.state[t] = make(map[string]modelResource)
	}
}

// types returns the types that the proxy asks for.
func (p *modelProxy) types() []string {
	if p.discovers {
		return append(slices.Clip(modelTypes), xdswire.VirtualHostType)
	}
	return modelTypes
}

// kick ends the stream. The proxy reconnects with its resources or, with forget, without.
func (p *modelProxy) kick(forget bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget = p.forget || forget
	p.dozing = false
	p.awake.Broadcast()
	p.stream = nil
	p.end()
}

// doze stops or resumes reading, and returns which.
func (p *modelProxy) doze() (reads bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dozing = !p.dozing
	p.awake.Broadcast()
	return !p.dozing
}

func (p *modelProxy) wakeUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dozing = false
	p.awake.Broadcast()
}

// behave ends all misbehaviour.
func (p *modelProxy) behave() {
	p.naughty.Store(false)
	p.wakeUp()
}

func (p *modelProxy) ticked(typ string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ticks[typ]
}

// resubscribe changes the subscriptions at random.
func (p *modelProxy) resubscribe(rng *rand.Rand) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	typ := xdswire.EndpointType
	if p.hosts != nil && rng.IntN(2) == 0 {
		typ = xdswire.VirtualHostType
		names := []string{
			"80/stable-1.ns0", "80/turn-ns0.ns0.svc.cluster.local", "80/turn-ns2.ns2", "80/churn-0.ns0.svc.cluster.local", "80/churn-1.ns1.svc.cluster.local",
			"80/external-0.example.com", "80/external-1.example.com", "80/unknown.example", "81/stable-0.ns0.svc.cluster.local",
		}
		if name := names[rng.IntN(len(names))]; !slices.Contains(p.hosts, name) {
			p.hosts = append(slices.Clip(p.hosts), name)
		}
	} else if rng.IntN(2) == 0 && len(p.routes) > 0 {
		typ = xdswire.RouteType
		p.routes = [][]string{{"80"}, {"80", "81"}, {"81"}}[rng.IntN(3)]
	} else {
		name := "outbound|80||stable-1.ns0.svc.cluster.local"
		if p.nothing[name] = !p.nothing[name]; !p.nothing[name] {
			delete(p.nothing, name)
		}
	}
	p.prune(typ)
	if p.stream != nil {
		_ = p.stream.send(typ, p.stream.nonceFor(typ, p.delta), nil, nil) // the loop sees why it failed
	}
	return fmt.Sprint(p.routes, p.hosts, slices.Collect(maps.Keys(p.nothing)))
}

// once serves one stream, if a server runs, and ignores its error.
func (p *modelProxy) once(ctx context.Context) {
	addr := p.addr.Load()
	if addr == nil {
		time.Sleep(2 * time.Millisecond)
		return
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	p.mu.Lock()
	p.end = end
	if p.forget {
		p.clear()
	}
	p.mu.Unlock()
	conn, err := grpc.NewClient(*addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.errorf("%v: %v", p, err)
		return
	}
	defer func() { _ = conn.Close() }()
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if p.delta {
		p.runDelta(ctx, ads)
	} else {
		p.runSotW(ctx, ads)
	}
	p.mu.Lock()
	p.stream = nil
	p.mu.Unlock()
}

// begun asks for everything on a new stream.
func (p *modelProxy) begun(s *modelStream) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stream = s
	p.note("a stream, %d clusters held", len(p.state[xdswire.ClusterType]))
	node := p.node
	for _, typ := range p.types() {
		if names := p.wanted(typ); names != nil && len(names) == 0 {
			continue
		}
		if err := s.send(typ, "", node, nil); err != nil {
			return err
		}
		node = nil
	}
	return nil
}

// wanted returns the subscribed names of a type; nil means all.
func (p *modelProxy) wanted(typ string) []string {
	switch typ {
	case xdswire.EndpointType:
		names := []string{}
		for name := range p.state[xdswire.ClusterType] {
			if strings.HasPrefix(name, "outbound") && !p.nothing[name] {
				names = append(names, name)
			}
		}
		for i := range 3 {
			name := fmt.Sprintf("outbound|80||secret-ns%d.ns%d.svc.cluster.local", i, i)
			if p.curious && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return names
	case xdswire.RouteType:
		return append([]string{}, p.routes...)
	case xdswire.VirtualHostType:
		return p.hosts
	}
	return nil
}

// prune drops resources that are no longer subscribed.
func (p *modelProxy) prune(typ string) {
	if names := p.wanted(typ); names != nil && typ != xdswire.VirtualHostType {
		maps.DeleteFunc(p.state[typ], func(name string, _ modelResource) bool { return !slices.Contains(names, name) })
	}
}

// ready waits while the proxy dozes.
func (p *modelProxy) ready(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.dozing && ctx.Err() == nil {
		p.awake.Wait()
	}
}

func (p *modelProxy) runSotW(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient) {
	stream, err := ads.StreamAggregatedResources(ctx)
	if err != nil {
		return
	}
	s := &modelStream{nonces: make(map[string]string), answered: make(map[string]bool)}
	s.send = func(typ, nonce string, node *corev3.Node, refusal *status.Status) error {
		return stream.Send(&discoveryv3.DiscoveryRequest{
			Node: node, TypeUrl: typ, ResourceNames: p.wanted(typ), VersionInfo: p.infos[typ], ResponseNonce: nonce, ErrorDetail: refusal,
		})
	}
	for err = p.begun(s); err == nil; {
		p.ready(ctx)
		var r *discoveryv3.DiscoveryResponse
		if r, err = stream.Recv(); err != nil {
			return
		}
		got := &modelResponse{typ: r.GetTypeUrl(), info: r.GetVersionInfo(), nonce: r.GetNonce(), resources: make(map[string]modelResource)}
		for _, a := range r.GetResources() {
			got.add(p, nameOf(p, a), "", a)
		}
		err = p.take(s, got)
	}
}

func (p *modelProxy) runDelta(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient) {
	stream, err := ads.DeltaAggregatedResources(ctx)
	if err != nil {
		return
	}
	s := &modelStream{nonces: make(map[string]string), answered: make(map[string]bool), watched: make(map[string][]string)}
	s.send = func(typ, nonce string, node *corev3.Node, refusal *status.Status) error {
		r := &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typ, ResponseNonce: nonce, ErrorDetail: refusal}
		names := p.wanted(typ)
		before, again := s.watched[typ]
		s.watched[typ] = names
		missing := func(in []string) func(string) bool { return func(n string) bool { return !slices.Contains(in, n) } }
		r.ResourceNamesSubscribe = filter(names, missing(before))
		r.ResourceNamesUnsubscribe = filter(before, missing(names))
		if !again {
			r.InitialResourceVersions = make(map[string]string)
			for name, held := range p.state[typ] {
				r.InitialResourceVersions[name] = held.version
			}
			if p.still && !p.isSentAgain(typ) {
				p.spared += len(p.state[typ])
			}
		}
		return stream.Send(r)
	}
	for err = p.begun(s); err == nil; {
		p.ready(ctx)
		var r *discoveryv3.DeltaDiscoveryResponse
		if r, err = stream.Recv(); err != nil {
			return
		}
		got := &modelResponse{
			typ: r.GetTypeUrl(), info: r.GetSystemVersionInfo(), nonce: r.GetNonce(), delta: true,
			removed: r.GetRemovedResources(), resources: make(map[string]modelResource),
		}
		for _, res := range r.GetResources() {
			got.add(p, res.GetName(), res.GetVersion(), res.GetResource())
		}
		err = p.take(s, got)
	}
}

func filter(list []string, keep func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !keep(s) })
}

// modelResponse is a response of either variant.
type modelResponse struct {
	typ, info, nonce string
	delta            bool
	resources        map[string]modelResource
	removed          []string
}

func (r *modelResponse) add(p *modelProxy, name, version string, a *anypb.Any) {
	if _, twice := r.resources[name]; twice {
		p.errorf("%v: %s stands twice in a response", p, name)
	}
	r.resources[name] = modelResource{version, string(a.GetValue())}
}

// nameOf is the name of a resource of the state of the world.
func nameOf(p *modelProxy, a *anypb.Any) string {
	m, err := a.UnmarshalNew()
	if err != nil {
		p.errorf("%v: %v", p, err)
		return ""
	}
	switch m := m.(type) {
	case *endpointv3.ClusterLoadAssignment:
		return m.GetClusterName()
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}

// take checks a response, takes it or refuses it, and answers.
func (p *modelProxy) take(s *modelStream, r *modelResponse) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.t.Failed() {
		return context.Canceled
	}
	refused := p.naughty.Load() && len(r.resources)%3 > 0
	p.note("%s %s %s: %d resources, %d removed, refused: %t", xdswire.ShortType(r.typ), r.nonce, r.info, len(r.resources), len(r.removed), refused)
	tick := p.check(r)
	s.nonces[r.typ], s.answered[r.typ] = r.nonce, true
	if refused {
		return s.send(r.typ, r.nonce, nil, &status.Status{Code: 13, Message: "refused by the model"})
	}
	p.infos[r.typ], p.ticks[r.typ] = r.info, tick
	if !r.delta && (r.typ == xdswire.ClusterType || r.typ == xdswire.ListenerType) {
		clear(p.state[r.typ])
	}
	for _, name := range r.removed {
		delete(p.state[r.typ], name)
	}
	maps.Copy(p.state[r.typ], r.resources)
	p.prune(r.typ)
	if err := s.send(r.typ, r.nonce, nil, nil); err != nil || r.typ != xdswire.ClusterType {
		return err
	}
	p.prune(xdswire.EndpointType)
	return s.send(xdswire.EndpointType, s.nonceFor(xdswire.EndpointType, p.delta), nil, nil)
}

// nonceFor is the nonce of a request that no response caused.
func (s *modelStream) nonceFor(typ string, delta bool) string {
	if delta {
		return ""
	}
	return s.nonces[typ]
}

// Where the model's tick stands in resources.
var (
	tickNumber  = regexp.MustCompile(`sa-tick-(\d+)`)
	tickAddress = regexp.MustCompile(`10\.7[78]\.(\d+)\.(\d+)`)
)

// check finds the faults of a response. It returns the newest tick known
// of the type.
func (p *modelProxy) check(r *modelResponse) int {
	newest := p.ticks[r.typ]
	for name, res := range r.resources {
		taken := p.ticks[r.typ]
		if p.refuses { // resource by resource, it may be told again what it took last
			taken = slices.Max(append(ticksIn(name+p.state[r.typ][name].body), 0))
		}
		for _, tick := range ticksIn(name + res.body) {
			if tick < taken {
				p.errorf("%v: %s %s is of tick %d, the proxy took %d before", p, xdswire.ShortType(r.typ), name, tick, taken)
			}
			newest = max(newest, tick)
		}
		p.checkPrivate(r.typ, name, res.body)
	}
	for _, name := range r.removed {
		p.checkPrivate(r.typ, name, "")
	}
	p.checkEmptied(r)
	if p.still {
		p.checkStill(r)
	}
	return newest
}

func ticksIn(text string) []int {
	var out []int
	for _, m := range tickNumber.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1])
		out = append(out, n)
	}
	for _, m := range tickAddress.FindAllStringSubmatch(text, -1) {
		high, _ := strconv.Atoi(m[1])
		low, _ := strconv.Atoi(m[2])
		out = append(out, high*250+low)
	}
	return out
}

func (p *modelProxy) checkPrivate(typ, name, body string) {
	asked := p.curious && typ == xdswire.EndpointType // an empty answer has the name
	for i := range 3 {
		if p.namespace == fmt.Sprintf("ns%d", i) {
			continue
		}
		if !asked && strings.Contains(name+body, fmt.Sprintf("secret-ns%d", i)) || strings.Contains(body, fmt.Sprintf("10.66.%d.", i)) {
			p.errorf("%v was sent %s %q, which tells of a private service of ns%d", p, xdswire.ShortType(typ), name, i)
		}
	}
}

// isAlways reports whether a host was always visible to the proxy, with an endpoint.
func (p *modelProxy) isAlways(host string) bool {
	return strings.HasSuffix(host, ".ns0.svc.cluster.local") && (strings.HasPrefix(host, "stable-") || strings.HasPrefix(host, "tick.")) ||
		host == "turn-"+p.namespace+"."+p.namespace+".svc.cluster.local"
}

func (p *modelProxy) always(cluster string) bool {
	parts := strings.Split(cluster, "|") // the last ones are the subset and the host
	return len(parts) == 4 && parts[0] == "outbound" && parts[2] == "" && p.isAlways(parts[3])
}

func (p *modelProxy) checkEmptied(r *modelResponse) {
	if r.typ != xdswire.ClusterType && r.typ != xdswire.EndpointType {
		return
	}
	gone := slices.Clone(r.removed)
	if !r.delta && r.typ == xdswire.ClusterType {
		for name := range p.state[r.typ] {
			if _, ok := r.resources[name]; !ok {
				gone = append(gone, name)
			}
		}
		if len(r.resources) == 0 {
			p.errorf("%v was sent no clusters", p)
		}
	}
	for _, name := range gone {
		if p.always(name) {
			p.errorf("%v: %s %s is taken away", p, xdswire.ShortType(r.typ), name)
		}
	}
	if r.typ == xdswire.ClusterType {
		return
	}
	for name, res := range r.resources {
		if addresses, err := addressesOf(res.body); p.always(name) && (err != nil || addresses == "") {
			p.errorf("%v: assignment %s is sent empty: %v", p, name, err)
		}
	}
}

func addressesOf(body string) (string, error) {
	var a endpointv3.ClusterLoadAssignment
	if err := proto.Unmarshal([]byte(body), &a); err != nil {
		return "", err
	}
	var all []string
	for _, l := range a.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			s := e.GetEndpoint().GetAddress().GetSocketAddress()
			all = append(all, fmt.Sprintf("%s:%d", s.GetAddress(), s.GetPortValue()))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

func (p *modelProxy) checkStill(r *modelResponse) {
	short := xdswire.ShortType(r.typ)
	if r.typ == xdswire.EndpointType {
		// State of the world does not report removed resources other than clusters.
		maps.DeleteFunc(r.resources, func(name string, _ modelResource) bool {
			_, known := p.state[xdswire.ClusterType][name]
			return !known
		})
	}
	for name, res := range r.resources {
		if held, ok := p.state[r.typ][name]; ok && held.body != res.body {
			p.errorf("%v: %s %s has other bytes though nothing changed", p, short, name)
		}
	}
	if !r.delta {
		// The version of a named type covers all resources, wanted or not.
		if p.wanted(r.typ) == nil && r.info != p.infos[r.typ] {
			p.errorf("%v: %s has version %s, and had %s with the same content", p, short, r.info, p.infos[r.typ])
		}
		return
	}
	for _, name := range r.removed {
		if _, held := p.state[r.typ][name]; held {
			p.errorf("%v: %s %s is removed though nothing changed", p, short, name)
		}
	}
	for name, res := range r.resources {
		held, ok := p.state[r.typ][name]
		switch {
		case !ok || held.version != res.version:
			p.errorf("%v: %s %s has version %q, and had %q with the same content", p, short, name, res.version, held.version)
		case !p.isSentAgain(r.typ):
			p.errorf("%v: %s %s is sent again", p, short, name)
		}
	}
}

// isSentAgain reports whether resources that the proxy holds are sent on a new stream: clusters may wait
// for endpoints, and requests for virtual hosts.
func (p *modelProxy) isSentAgain(typ string) bool {
	return typ == xdswire.EndpointType || typ == xdswire.VirtualHostType && p.hosts != nil
}

// unchanging says that nothing changes from now on, or may again. It returns
// how many resources were not sent again in between.
func (p *modelProxy) unchanging(still bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.still = still
	if still && p.stream != nil {
		clear(p.stream.answered)
	}
	spared := p.spared
	p.spared = 0
	return spared
}

// answered reports whether the stream has an answer for each type.
func (p *modelProxy) answered() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stream == nil {
		return false
	}
	for _, typ := range p.types() {
		if names := p.wanted(typ); (names == nil || len(names) > 0) && !p.stream.answered[typ] {
			return false
		}
	}
	return true
}

// differs returns the difference between the proxy's state and the model, or nothing.
func (p *modelProxy) differs() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	want, got := p.endpointsFor(p.namespace), make(map[string]string)
	for name := range p.state[xdswire.ClusterType] {
		if !strings.HasPrefix(name, "outbound|80|") {
			continue
		}
		addresses, err := addressesOf(p.state[xdswire.EndpointType][name].body)
		if err != nil {
			return err.Error()
		}
		got[name] = addresses
	}
	for name := range p.nothing {
		want[name] = ""
	}
	for _, name := range p.routes {
		if p.state[xdswire.RouteType][name].body == "" {
			return "no route " + name
		}
	}
	if len(p.routes) > 0 { // connections are captured
		listener := fmt.Sprintf("10.78.%d.%d_9000", p.tick/250, p.tick%250)
		if p.state[xdswire.ListenerType][listener].body == "" {
			return "no listener " + listener
		}
	}
	return cmp.Diff(want, got)
}

// compare says in what the states of two proxies differ, or nothing.
func (p *modelProxy) compare(o *modelProxy) string {
	return cmp.Diff(p.bodies(), o.bodies())
}

func (p *modelProxy) bodies() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]string)
	for typ, resources := range p.state {
		for name, r := range resources {
			if _, ok := p.state[xdswire.ClusterType][name]; ok || typ != xdswire.EndpointType {
				out[xdswire.ShortType(typ)+" "+name] = r.body
			}
		}
	}
	return out
}
