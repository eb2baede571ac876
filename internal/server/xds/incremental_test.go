package xds

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/patch"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

var incrementalSeeds = flag.Int("seeds", 0,
	"how many seeds TestIncrementalEqualsFull runs, each of 1,000 changes; 0 is 5, and 1 with -short or the race detector")

// TestIncrementalEqualsFull changes a mesh at random, 1,000 times for each seed:
// objects, clusters and proxies are added, changed and removed in batches. After each
// change the snapshot must equal the one that a new registry builds, and every proxy's
// views must hold exactly the resources generated from that one.
func TestIncrementalEqualsFull(t *testing.T) {
	const changes = 1000
	seeds := *incrementalSeeds
	switch {
	case seeds > 0:
	case testing.Short() || raceEnabled():
		seeds = 1
	default:
		seeds = 5
	}
	var mu sync.Mutex
	total := make(map[string]int) // resources of all seeds, by type
	t.Cleanup(func() {
		for i, url := range xdswire.PushOrder {
			if total[url] == 0 && i != sds && !t.Failed() {
				t.Errorf("the random meshes have nothing of %s", xdswire.ShortType(url))
			}
		}
	})
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			steps := randomSteps(seed, changes)
			at, made, err := follow(steps)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				for url, n := range made {
					total[url] += n
				}
				return
			}
			t.Errorf("seed %d, step %d: %s\nthe change: %v", seed, at, err, steps[at])
			t.Logf("a shorter way there:\n%s", shrink(steps[:at+1], 20*time.Second))
		})
	}
}

// raceEnabled reports whether the race detector is on, which makes the test ten times
// as slow.
func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// step is one change: events that arrive together, and the indexes of proxies that
// connect or disconnect.
type step struct {
	events []snapshot.Event
	toggle []int
	// replace is set if the events are all objects of the last cluster, remove if the
	// cluster is removed first.
	replace, remove bool
	standings       map[mesh.ClusterID]snapshot.Balancing
	roots           []string                      // nil: unchanged
	keySets         map[snapshot.KeySource]string // nil: unchanged
	addresses       map[string][]netip.Addr       // of host names; nil: unchanged
	health          *healthReport
}

// healthReport is a report of a proxy about its WorkloadEntry.
type healthReport struct {
	entry   snapshot.PodKey
	account string
	is      snapshot.Condition
}

func (s step) String() string {
	var b strings.Builder
	for _, i := range s.toggle {
		fmt.Fprintf(&b, "\n  proxy %d connects or leaves", i)
	}
	if s.replace || s.remove {
		fmt.Fprintf(&b, "\n  the last cluster goes: %v, has only this: %v", s.remove, s.replace)
	}
	for id, standing := range s.standings {
		fmt.Fprintf(&b, "\n  standing of %s: %+v", id, standing)
	}
	if s.roots != nil {
		fmt.Fprintf(&b, "\n  the roots are %q", s.roots)
	}
	if s.keySets != nil {
		fmt.Fprintf(&b, "\n  the key sets are %v", s.keySets)
	}
	if s.addresses != nil {
		fmt.Fprintf(&b, "\n  the addresses of hosts are %v", s.addresses)
	}
	if s.health != nil {
		fmt.Fprintf(&b, "\n  health: %+v", *s.health)
	}
	for _, e := range s.events {
		if e.Object == nil {
			fmt.Fprintf(&b, "\n  - %v", e.Key)
		} else {
			fmt.Fprintf(&b, "\n  + %v %+v", e.Key, e.Object)
		}
	}
	return b.String()
}

// most bounds the number of objects, so that a rebuild is cheap.
const most = 30

func randomSteps(seed uint64, n int) []step {
	c := meshGenerator{rand.New(rand.NewPCG(seed, 1))}
	var exists []snapshot.Key
	var steps []step
	for range n {
		var s step
		put := func(o snapshot.Object) {
			if !slices.Contains(exists, o.Key()) {
				exists = append(exists, o.Key())
			}
			s.events = append(s.events, snapshot.Event{Key: o.Key(), Object: o})
		}
		gone := func(k snapshot.Key) {
			exists = slices.DeleteFunc(exists, func(other snapshot.Key) bool { return other == k })
			s.events = append(s.events, snapshot.Event{Key: k})
		}
		if c.once(8) {
			s.toggle = append(s.toggle, c.IntN(len(incrementalNodes())))
		}
		if c.once(30) {
			s.standings = map[mesh.ClusterID]snapshot.Balancing{pickOne(c, meshClusters...): {
				Drained: c.once(3), Demoted: c.once(3), Weight: pickOne[uint32](c, 0, 0, 50, 100, 150, 200, 1),
			}}
		}
		if c.once(30) {
			s.roots = []string{"a", "b", "c"}[:c.IntN(4)]
		}
		if c.once(15) {
			s.keySets = c.keySets()
		}
		if c.once(15) {
			s.addresses = c.addresses()
		}
		if c.once(5) {
			report := c.health()
			s.health = &report
		}
		last := meshClusters[len(meshClusters)-1]
		if c.once(40) {
			exists = slices.DeleteFunc(exists, func(k snapshot.Key) bool { return k.Cluster == last })
			s.remove = c.once(2)
			s.replace = !s.remove
			for range c.IntN(6) {
				put(c.object(last))
			}
			steps = append(steps, s)
			continue
		}
		if c.once(60) {
			before := len(s.events)
			for _, k := range slices.Clone(exists) {
				if k.Cluster == last {
					gone(k)
				}
			}
			for len(s.events) == before || len(exists) < most/2 {
				put(c.object(last))
			}
			steps = append(steps, s)
			continue
		}
		for range 1 + c.IntN(5) {
			if len(exists) > 0 && (c.once(4) || len(exists) >= most) {
				gone(pickOne(c, exists...))
				continue
			}
			put(c.object(pickOne(c, "c1", "c1", "c1", "c2", "c2", meshClusters[len(meshClusters)-1])))
		}
		steps = append(steps, s)
	}
	return steps
}

// follow applies the steps and checks after each. It returns the first step with a
// fault, and the fault.
func follow(steps []step) (at int, made map[string]int, err error) {
	w := newIncremental()
	defer w.registry.stop()
	for i := range min(7, len(w.nodes)) {
		w.toggle(i)
	}
	w.toggle(len(w.nodes) - 1) // requests virtual hosts
	for i, s := range steps {
		for _, p := range s.toggle {
			w.toggle(p)
		}
		w.apply(i, s)
		if err := w.check(i%50 == 0); err != nil {
			return i, nil, err
		}
	}
	made = make(map[string]int)
	for u, resources := range w.full {
		made[u.Type()] += len(resources)
	}
	return 0, made, nil
}

// shrink removes steps as long as a fault remains.
func shrink(steps []step, limit time.Duration) string {
	end := time.Now().Add(limit)
	why := error(nil)
	for size := len(steps) / 2; size > 0; size /= 2 {
		for from := 0; from+size <= len(steps) && time.Now().Before(end); {
			less := slices.Concat(steps[:from], steps[from+size:])
			at, _, err := follow(less)
			if err == nil {
				from += size
				continue
			}
			steps, why = less[:at+1], err
		}
	}
	var b strings.Builder
	for i, s := range steps {
		if i >= 40 {
			fmt.Fprintf(&b, "and %d steps more\n", len(steps)-i)
			break
		}
		fmt.Fprintf(&b, "step %d:%v\n", i, s)
	}
	fmt.Fprintf(&b, "then: %v", why)
	return b.String()
}

// publication is a publication of a registry.
type publication struct {
	snapshot *snapshot.Snapshot
	changes  *snapshot.Changes
}

// runningRegistry is a registry whose publications can be waited for.
type runningRegistry struct {
	*registry.Registry
	published chan publication
	clusters  []mesh.ClusterID
	stop      func()
}

func runRegistry(clusters []mesh.ClusterID) *runningRegistry {
	r := &runningRegistry{published: make(chan publication, 1), clusters: clusters}
	r.Registry = registry.New(registry.Config{
		Local: clusters[0], Clusters: clusters, SystemNamespace: mesh.DefaultSystemNamespace,
		Resolve: func([]string) {}, // see SetAddresses
		Publish: func(s *snapshot.Snapshot, c *snapshot.Changes) { r.published <- publication{s, c} },
		Log:     slog.New(slog.DiscardHandler), Now: time.Now,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = func() {
		cancel()
		<-done
	}
	return r
}

func (r *runningRegistry) synced() {
	for _, c := range r.clusters {
		r.Synced(c)
	}
}

// incremental is a mesh as the control plane keeps it, with the objects that make it
// up.
type incremental struct {
	registry *runningRegistry
	hub      *Hub
	now      *snapshot.Snapshot
	nodes    []proxy.Node
	subs     []*subscriber // by node; nil if not connected
	objects  map[snapshot.Key]snapshot.Object
	clusters []mesh.ClusterID // present clusters
	standing map[mesh.ClusterID]snapshot.Balancing
	roots    []string
	keySets  map[snapshot.KeySource]string
	hosts    map[string][]netip.Addr
	health   []healthReport

	clock    time.Time  // of the hub
	requests *rand.Rand // for virtual hosts

	same interned
	// full holds the resources of units of interned facts.
	full    map[units.Unit][]*xdswire.Resource
	encoder xdswire.Encoder
}

func newIncremental() *incremental {
	h := newUnstartedHub()
	h.cfg.Generator = Generator{
		ParseNode: proxy.ParseNode, Assign: xdsgen.Assign, AssignReads: xdsgen.AssignReads, Concerned: xdsgen.Concerned, Fallback: xdsgen.Fallback,
	}
	w := &incremental{
		registry: runRegistry(meshClusters), hub: h, nodes: incrementalNodes(), clock: h.cfg.Now(), requests: rand.New(rand.NewPCG(0, 1)),
		clusters: meshClusters, standing: make(map[mesh.ClusterID]snapshot.Balancing),
		objects: make(map[snapshot.Key]snapshot.Object), same: make(interned), full: make(map[units.Unit][]*xdswire.Resource),
	}
	h.cfg.Now = func() time.Time { return w.clock }
	w.subs = make([]*subscriber, len(w.nodes))
	first := meshGenerator{rand.New(rand.NewPCG(0, 0))}
	w.keySets, w.hosts = first.keySets(), first.addresses()
	w.registry.SetKeySets(w.keySets)
	w.registry.SetAddresses(w.hosts)
	w.registry.synced()
	w.take()
	return w
}

// take passes the next publication of the registry to the hub.
func (w *incremental) take() {
	p := <-w.registry.published
	w.now = p.snapshot
	w.hub.Update(p.snapshot, p.changes)
}

func (w *incremental) toggle(i int) {
	if sub := w.subs[i]; sub != nil {
		w.hub.detach(sub)
		w.subs[i] = nil
		return
	}
	w.subs[i] = silent(w.nodes[i])
	w.hub.attach(w.subs[i])
}

// silent returns a stream that gets views but no responses.
func silent(n proxy.Node) *subscriber {
	sub := &subscriber{id: n.ID.ProxyID(), node: n}
	sub.session = &session{sub: sub}
	for _, i := range []int{cds, eds, lds, rds, vhds, ecds, nds, pcds, bds} {
		sub.demands[i].asked = true
	}
	if n.RequestsHosts {
		sub.demands[rds].hosts, sub.demands[vhds].hosts = hostsOnDemand, hostsOnDemand
	}
	return sub
}

// checkRequested requests some more virtual hosts for a stream that gets them on demand. It compares
// its virtual hosts with the virtual hosts of a stream that requests all of them at once.
func (w *incremental) checkRequested(sub *subscriber) error {
	now, ok := sub.assigned.Load().types[vhds].pair()
	if !ok {
		return errors.New("no virtual hosts")
	}
	s := sub.session
	if s.hub == nil {
		s.hub, s.log = w.hub, slog.New(slog.DiscardHandler)
		s.types[rds].want.Names = w.hub.names.Of([]string{"80", "81", "85"})
	}
	if w.requests.IntN(3) == 0 {
		s.requestHosts([]string{w.randomHost(), w.randomHost()})
	}
	got := s.onlyRequested(now)
	once := &session{hub: w.hub, sub: sub, log: s.log}
	once.types[rds].want.Names = s.types[rds].want.Names
	once.requestHosts(s.types[vhds].want.Names.Names())
	want := once.onlyRequested(now)
	if got.version() != want.version() || !slices.EqualFunc(slices.Collect(got.all), slices.Collect(want.all), sameName) {
		return fmt.Errorf("the requested virtual hosts differ (-all at once +incremental):\n%s", cmp.Diff(decoded(want.all), decoded(got.all), protocmp.Transform()))
	}
	return nil
}

// randomHost returns the name of a virtual host for a request.
func (w *incremental) randomHost() string {
	c := meshGenerator{w.requests}
	host := pickOne(c, "svc%d.%s.svc.cluster.local", "svc%d.%s", "svc%d", "pod.svc%d.%s", "unknown%d.example", "a.example.com", "x.example.com", "svc%d.%s.svc.clusterset.local")
	if strings.Contains(host, "%s") {
		host = fmt.Sprintf(host, c.IntN(3), c.namespace())
	} else if strings.Contains(host, "%d") {
		host = fmt.Sprintf(host, c.IntN(3))
	}
	return pickOne(c, "80", "80", "81", "85", "86") + "/" + host + pickOne(c, "", "", ":80")
}

// apply makes a step visible. A pod that nothing reads changes with every step, which
// shows when the step is complete.
func (w *incremental) apply(number int, s step) {
	for id, standing := range s.standings {
		w.standing[id] = standing
		w.registry.SetBalancing(id, standing)
	}
	if s.roots != nil {
		w.roots = s.roots
		w.registry.SetTrustBundle(s.roots)
	}
	if s.keySets != nil {
		w.keySets = s.keySets
		w.registry.SetKeySets(s.keySets)
	}
	if s.addresses != nil {
		w.hosts = s.addresses
		w.registry.SetAddresses(s.addresses)
	}
	if h := s.health; h != nil {
		w.health = append(w.health, *h)
		w.registry.SetHealth(h.entry, h.account, h.is)
	}
	last := meshClusters[len(meshClusters)-1]
	if s.remove || s.replace {
		maps.DeleteFunc(w.objects, func(k snapshot.Key, _ snapshot.Object) bool { return k.Cluster == last })
	}
	if s.remove {
		w.clusters = slices.DeleteFunc(slices.Clone(w.clusters), func(id mesh.ClusterID) bool { return id == last })
		w.registry.Remove(last)
	}
	for _, e := range s.events {
		old, known := w.objects[e.Key]
		switch {
		case e.Object == nil:
			delete(w.objects, e.Key)
		case !known || text(old) != text(e.Object): // the registry keeps an equal object
			w.objects[e.Key] = e.Object
		}
		if !slices.Contains(w.clusters, e.Key.Cluster) {
			w.clusters = append(slices.Clip(w.clusters), e.Key.Cluster)
		}
	}
	if s.replace {
		w.registry.Replace(last, s.events)
	} else {
		w.registry.Apply(s.events)
	}
	tick := &snapshot.Pod{Meta: snapshot.Meta{Cluster: "c1", Namespace: "istio-system", Name: "tick", Labels: map[string]string{"step": fmt.Sprint(number)}}}
	w.objects[tick.Key()] = tick
	w.registry.Apply([]snapshot.Event{{Key: tick.Key(), Object: tick}})
	for w.now.Pods.Get("c1/istio-system/tick") != tick {
		w.take()
	}
	w.hub.deliver()
	w.acknowledge()
}

// acknowledge reports that all proxies have the policies that move, and again once they have
// drained their listeners.
func (w *incremental) acknowledge() {
	for range 2 {
		w.reportMoved()
		w.clock = w.clock.Add(drainMargin)
	}
}

func (w *incremental) reportMoved() {
	has := make(map[*subscriber]*assignment)
	for _, sub := range w.subs {
		if sub != nil && sub.assigned.Load().moving {
			has[sub] = sub.assigned.Load()
		}
	}
	w.hub.round(mail{moved: has})
}

// rebuilt returns the snapshot that a new registry builds from the objects.
func (w *incremental) rebuilt() *snapshot.Snapshot {
	r := runRegistry(w.clusters)
	defer r.stop()
	events := make([]snapshot.Event, 0, len(w.objects))
	for k, o := range w.objects {
		events = append(events, snapshot.Event{Key: k, Object: o})
	}
	r.Apply(events)
	for id, standing := range w.standing {
		r.SetBalancing(id, standing)
	}
	if w.roots != nil {
		r.SetTrustBundle(w.roots)
	}
	if w.keySets != nil {
		r.SetKeySets(w.keySets)
	}
	r.SetAddresses(w.hosts)
	for _, h := range w.health {
		r.SetHealth(h.entry, h.account, h.is)
	}
	r.synced()
	return (<-r.published).snapshot
}

func (w *incremental) check(thorough bool) error {
	rebuilt := w.rebuilt()
	want, got := w.same.snapshot(rebuilt), w.same.snapshot(w.now)
	if !reflect.DeepEqual(withoutObjects(want), withoutObjects(got)) || !reflect.DeepEqual(objects(rebuilt), objects(w.now)) {
		return fmt.Errorf("the snapshot differs (-rebuilt +incremental):\n%s", cmp.Diff(readable(rebuilt), readable(w.now)))
	}
	checked := make(map[[2]any]struct{}) // a view of several proxies is compared once
	for i, sub := range w.subs {
		if sub == nil {
			continue
		}
		views := xdsgen.Assign(want, sub.node)
		for t, url := range xdswire.PushOrder {
			held := sub.assigned.Load().types[t]
			if t == sds {
				continue // its views depend on the subscription
			}
			if _, served := views[url]; served != held.served {
				return fmt.Errorf("proxy %d: %s served: %v, want %v", i, xdswire.ShortType(url), held.served, served)
			}
			for j, listed := range views[url].List() {
				if sub.node.RequestsHosts {
					switch view := listed.(type) {
					case xdsgen.RoutesWithoutHosts:
						listed = view.OnDemand()
					case xdsgen.HostView:
						listed = view.OnDemand()
					}
				}
				pair := [2]any{listed, held.views[j]}
				if _, done := checked[pair]; done {
					continue
				}
				checked[pair] = struct{}{}
				view, _ := pair[0].(units.View)
				if err := w.compare(want, view, pair[1].(*liveView), thorough); err != nil {
					return fmt.Errorf("proxy %d (%s): %s: %w", i, sub.id, xdswire.ShortType(url), err)
				}
			}
		}
		if sub.node.RequestsHosts {
			if err := w.checkRequested(sub); err != nil {
				return fmt.Errorf("proxy %d (%s): %w", i, sub.id, err)
			}
		}
	}
	return nil
}

// compare compares a live view with the same view of a snapshot of interned facts.
func (w *incremental) compare(s *snapshot.Snapshot, view units.View, live *liveView, thorough bool) error {
	if view == nil || live == nil {
		if (view == nil) != (live == nil) {
			return fmt.Errorf("view %v, live view %v", view, live)
		}
		return nil
	}
	want, err := w.generate(s, view)
	if err != nil {
		return err
	}
	state := live.state.Load()
	equal := slices.EqualFunc(want, slices.Collect(state.resources.All), func(a, b *xdswire.Resource) bool { return a.Name == b.Name && a.Version == b.Version })
	if !equal {
		return fmt.Errorf("the resources of %+v differ (-rebuilt +incremental):\n%s", view, cmp.Diff(decoded(slices.Values(want)), decoded(state.resources.All), protocmp.Transform()))
	}
	if !thorough {
		return nil
	}
	i := 0
	for r := range state.resources.All {
		if !bytes.Equal(r.Delta(), want[i].Delta()) {
			return fmt.Errorf("%s: equal versions of different bytes", r.Name)
		}
		i++
	}
	if sum := xdswire.SharedList(want...).Sum(); sum != state.resources.Sum() {
		return fmt.Errorf("the version is %x, of the resources it is %x", state.resources.Sum(), sum)
	}
	return nil
}

// generate returns all resources of a view by name. It generates once for equal facts.
func (w *incremental) generate(s *snapshot.Snapshot, view units.View) (out []*xdswire.Resource, err error) {
	all := make(map[units.Key]units.Unit)
	for key, u := range units.Units(view, s) {
		if _, twice := all[key]; twice {
			err = fmt.Errorf("two units of %+v have the key %v", view, key)
		}
		all[key] = u
	}
	names := make(map[string]struct{})
	for _, key := range slices.SortedFunc(maps.Keys(all), units.Key.Compare) {
		u := all[key]
		made, known := w.full[u]
		if !known {
			var fault error
			if made, fault = u.Generate(&w.encoder); fault != nil && !errors.As(fault, new(patch.Faults)) {
				return nil, fault
			}
			w.full[u] = made
		}
		for _, r := range made {
			if _, twice := names[r.Name]; !twice {
				names[r.Name] = struct{}{}
				out = append(out, r)
			}
		}
	}
	slices.SortFunc(out, func(a, b *xdswire.Resource) int { return strings.Compare(a.Name, b.Name) })
	if to, ok := view.(units.Joined); ok {
		out = []*xdswire.Resource{to.Join(&w.encoder, xdswire.SharedList(out...))}
	}
	return out, err
}

func sameName(a, b *xdswire.Resource) bool { return a.Name == b.Name }

func decoded(resources iter.Seq[*xdswire.Resource]) map[string]any {
	out := make(map[string]any)
	for r := range resources {
		a, err := r.Any()
		if err != nil {
			out[r.Name] = err
			continue
		}
		m, err := a.UnmarshalNew()
		if err != nil {
			out[r.Name] = err
			continue
		}
		out[r.Name] = m
	}
	return out
}

// interned gives equal facts from different registries the same address. It compares
// contents, in which interned facts appear as addresses. Objects appear as contents: the
// registry keeps an object if an equal one replaces it.
type interned map[string]any

func intern[V any](in interned, content string, v *V) *V {
	key := fmt.Sprintf("%T %s", v, content)
	if known, ok := in[key]; ok {
		return known.(*V)
	}
	in[key] = v
	return v
}

// text returns the content of a fact that refers to no other fact. An empty list or map
// equals none.
func text(fact any) string {
	b, err := json.Marshal(fact)
	if err != nil {
		panic(err) // facts are always valid
	}
	return strings.NewReplacer("[]", "null", "{}", "null").Replace(string(b))
}

func addressesOf[V any](list []*V) string {
	var b strings.Builder
	for _, v := range list {
		fmt.Fprintf(&b, "%p ", v)
	}
	return b.String()
}

// table interns the facts of a table, and then the table.
func table[K ~string | ~uint32, V any](in interned, t *snapshot.Table[K, V], fact func(*V) *V) *snapshot.Table[K, V] {
	facts, content := make(map[K]*V), strings.Builder{}
	for k, v := range t.All() {
		facts[k] = fact(v)
		fmt.Fprintf(&content, "%v %p ", k, facts[k])
	}
	return intern(in, content.String(), (*snapshot.Table[K, V])(nil).With(facts))
}

// withoutObjects returns a snapshot without the objects that it contains as they are, which
// objects returns. Equal objects may have several addresses.
func withoutObjects(s *snapshot.Snapshot) snapshot.Snapshot {
	out := *s
	out.Pods, out.Secrets, out.ConfigMaps = nil, nil, nil
	return out
}

func objects(s *snapshot.Snapshot) []any {
	return []any{maps.Collect(s.Pods.All()), maps.Collect(s.Secrets.All()), maps.Collect(s.ConfigMaps.All())}
}

// snapshot returns the snapshot of interned facts. It copies fields that it does not
// know.
func (in interned) snapshot(s *snapshot.Snapshot) *snapshot.Snapshot {
	seen := make(map[*snapshot.MeshService]*snapshot.MeshService)
	service := func(v *snapshot.MeshService) *snapshot.MeshService {
		if seen[v] == nil {
			seen[v] = intern(in, text(v), v)
		}
		return seen[v]
	}
	services := func(list []*snapshot.MeshService) []*snapshot.MeshService {
		out := make([]*snapshot.MeshService, len(list))
		for i, v := range list {
			out[i] = service(v)
		}
		return out
	}
	out := *s
	out.Seq = 0
	out.Mesh, out.Gateways = intern(in, text(s.Mesh), s.Mesh), intern(in, text(s.Gateways), s.Gateways)
	out.Networks = table(in, s.Networks, func(v *mesh.NetworkID) *mesh.NetworkID { return intern(in, text(v), v) })
	out.TrustBundle = intern(in, text(s.TrustBundle), s.TrustBundle)
	out.Services = table(in, s.Services, service)
	out.Localities = table(in, s.Localities, func(v *mesh.Locality) *mesh.Locality { return intern(in, text(v), v) })
	out.Endpoints = table(in, s.Endpoints, func(v *snapshot.Endpoints) *snapshot.Endpoints { return intern(in, text(v), v) })
	out.Pods = table(in, s.Pods, func(v *snapshot.Pod) *snapshot.Pod { return v })
	out.Secrets = table(in, s.Secrets, func(v *snapshot.Secret) *snapshot.Secret { return v })
	out.ConfigMaps = table(in, s.ConfigMaps, func(v *snapshot.ConfigMap) *snapshot.ConfigMap { return v })
	out.Ports = table(in, s.Ports, func(v *snapshot.PortServices) *snapshot.PortServices {
		fact := &snapshot.PortServices{Number: v.Number, Services: services(v.Services), Different: services(v.Different)}
		return intern(in, fmt.Sprint(v.Number, addressesOf(fact.Services)), fact)
	})
	rules := func(list []*snapshot.HostRule) []*snapshot.HostRule {
		out := make([]*snapshot.HostRule, len(list))
		for i, v := range list {
			out[i] = intern(in, ruleText(v), v)
		}
		return out
	}
	out.Rules = table(in, s.Rules, func(v *snapshot.HostRules) *snapshot.HostRules {
		fact := &snapshot.HostRules{Default: rules(v.Default), Own: make(map[string][]*snapshot.HostRule)}
		key := fmt.Sprint(addressesOf(fact.Default))
		for _, ns := range slices.Sorted(maps.Keys(v.Own)) {
			fact.Own[ns] = rules(v.Own[ns])
			key += fmt.Sprint(" ", ns, addressesOf(fact.Own[ns]))
		}
		return intern(in, key, fact)
	})
	in.routes(&out, service)
	out.Namespaces = table(in, s.Namespaces, func(v *snapshot.NamespaceFacts) *snapshot.NamespaceFacts {
		fact := *v
		fact.Rules, fact.Routes = intern(in, text(v.Rules), v.Rules), intern(in, text(v.Routes), v.Routes)
		fact.Services = services(v.Services)
		return intern(in, fmt.Sprint(v.Name, text(fact.Policies), "/", fact.KeySets, "/", text(fact.EnvoyFilters), "/", addressesOf(fact.Services), fmt.Sprintf("%p %p", fact.Rules, fact.Routes)), &fact)
	})
	return &out
}

// routes interns the VirtualServices of a snapshot.
func (in interned) routes(s *snapshot.Snapshot, service func(*snapshot.MeshService) *snapshot.MeshService) {
	list := func(services []*snapshot.VirtualService) []*snapshot.VirtualService {
		var out []*snapshot.VirtualService
		for _, v := range services {
			out = append(out, intern(in, text(v), v))
		}
		return out
	}
	clients := func(r snapshot.ClientRoutes) (out snapshot.ClientRoutes, key string) {
		out.Default, out.Own = list(r.Default), make(map[string][]*snapshot.VirtualService)
		key = addressesOf(out.Default)
		for _, ns := range slices.Sorted(maps.Keys(r.Own)) {
			out.Own[ns] = list(r.Own[ns])
			key += ns + addressesOf(out.Own[ns])
		}
		return out, key
	}
	unserved := func(v *snapshot.MeshService) *snapshot.MeshService {
		if v == nil {
			return nil
		}
		return service(v)
	}
	s.RouteClients = intern(in, text(s.RouteClients), s.RouteClients)
	s.Referrers = table(in, s.Referrers, func(v *snapshot.Referrers) *snapshot.Referrers { return intern(in, text(v), v) })
	s.GatewayRoutes = table(in, s.GatewayRoutes, func(v *snapshot.ClientRoutes) *snapshot.ClientRoutes {
		fact, key := clients(*v)
		return intern(in, key, &fact)
	})
	s.Routes = table(in, s.Routes, func(v *snapshot.HostRoutes) *snapshot.HostRoutes {
		fact := &snapshot.HostRoutes{Host: v.Host, Ports: v.Ports, Unserved: unserved(v.Unserved)}
		var http, streams string
		fact.HTTP, http = clients(v.HTTP)
		fact.Streams, streams = clients(v.Streams)
		return intern(in, fmt.Sprintf("%s %v %p %s/%s", v.Host, v.Ports, fact.Unserved, http, streams), fact)
	})
	s.PortRoutes = table(in, s.PortRoutes, func(v *snapshot.PortRoutes) *snapshot.PortRoutes {
		fact, key := &snapshot.PortRoutes{Number: v.Number}, fmt.Sprint(v.Number)
		hosts := func(of []snapshot.RoutedHost) (out []snapshot.RoutedHost) {
			for _, h := range of {
				h.Services, h.Unserved = list(h.Services), unserved(h.Unserved)
				out = append(out, h)
				key += fmt.Sprintf(" %s %s %p", h.Host, addressesOf(h.Services), h.Unserved)
			}
			key += "/"
			return out
		}
		fact.HTTP, fact.Streams = hosts(v.HTTP), hosts(v.Streams)
		return intern(in, key, fact)
	})
}

// ruleText returns a rule as text.
func ruleText(r *snapshot.HostRule) string {
	policy := func(m proto.Message) string {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			panic(err) // the messages are valid
		}
		return string(b)
	}
	out := fmt.Sprint(r.Namespace, "/", r.Name, "/", r.Selector, "/", r.Policy != nil, policy(r.Policy))
	for _, s := range r.Subsets {
		out += "\x00" + policy(s)
	}
	return out
}

// readable returns a snapshot as text, to show differences.
func readable(s *snapshot.Snapshot) map[string]any {
	out := map[string]any{
		"trust bundle": text(s.TrustBundle), "mesh": text(s.Mesh), "networks": text(maps.Collect(s.Networks.All())), "gateways": text(s.Gateways), "private": s.Private, "rule traits": s.RuleTraits, "gateway configs": addressesOf(s.GatewayConfigs),
	}
	for k, v := range s.Services.All() {
		out["service "+k] = text(v)
	}
	for k, v := range s.Rules.All() {
		out["rules "+k] = fmt.Sprint(len(v.Default), len(v.Own))
		for ns, list := range v.Own {
			out[fmt.Sprint("rules ", k, ns)] = len(list)
			for i, r := range list {
				out[fmt.Sprint("rule ", k, ns, i)] = ruleText(r)
			}
		}
		for i, r := range v.Default {
			out[fmt.Sprint("rule ", k, i)] = ruleText(r)
		}
	}
	for k, v := range s.Routes.All() {
		out["routes "+k] = text(v)
	}
	for k, v := range s.PortRoutes.All() {
		out[fmt.Sprint("routes ", k)] = text(v)
	}
	for k, v := range s.GatewayRoutes.All() {
		out["routes of gateway "+k] = text(v)
	}
	for k, v := range s.Referrers.All() {
		out["referrers of "+k] = text(v)
	}
	out["clients of routes"] = text(s.RouteClients)
	for k, v := range s.Endpoints.All() {
		out["endpoints "+k] = text(v)
	}
	for k, v := range s.Ports.All() {
		out[fmt.Sprint("port ", k)] = text(v)
	}
	for k, v := range s.Localities.All() {
		out["locality "+k] = *v
	}
	for k, v := range s.Pods.All() {
		out["pod "+k] = text(v)
	}
	for k, v := range s.Namespaces.All() {
		out["namespace "+k] = fmt.Sprint(text(v.Policies), "/", addressesOf(v.EnvoyFilters), "/", text(v.Services), text(v.Rules), text(v.Routes))
	}
	return out
}
