package clusters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const host = "hello.sample.svc.cluster.local"

// scriptedSource is a source that the test controls.
type scriptedSource struct {
	run    func(ctx context.Context, sink snapshot.Sink) error
	report *atomic.Pointer[Report]
}

func (s scriptedSource) Run(ctx context.Context, sink snapshot.Sink) error { return s.run(ctx, sink) }

func (s scriptedSource) Report() Report {
	if s.report != nil {
		if r := s.report.Load(); r != nil {
			return *r
		}
	}
	return Report{}
}

// hello returns the objects of the service hello with the addresses.
func hello(c mesh.ClusterID, ips ...string) []snapshot.Event {
	slice := &snapshot.EndpointSlice{
		Meta: snapshot.Meta{Cluster: c, Namespace: "sample", Name: "x"}, Service: "hello",
		Ports: []snapshot.SlicePort{{Name: "http", Number: 80}},
	}
	for _, ip := range ips {
		slice.Endpoints = append(slice.Endpoints, snapshot.SliceEndpoint{Addresses: []netip.Addr{netip.MustParseAddr(ip)}, Ready: true})
	}
	var out []snapshot.Event
	for _, o := range []snapshot.Object{slice, &snapshot.Service{
		Meta:  snapshot.Meta{Cluster: c, Namespace: "sample", Name: "hello"},
		Ports: []snapshot.ServicePort{{Name: "http", Number: 80, Protocol: mesh.HTTP, Target: 80}},
	}} {
		out = append(out, snapshot.Event{Key: o.Key(), Object: o})
	}
	return out
}

// serves returns a source that sends the events and then waits for its end.
func serves(c mesh.ClusterID, events []snapshot.Event) func(context.Context, snapshot.Sink) error {
	return func(ctx context.Context, sink snapshot.Sink) error {
		sink.Apply(events)
		sink.Synced(c)
		<-ctx.Done()
		return nil
	}
}

func access(run func(context.Context, snapshot.Sink) error) Access {
	return Access{NewSource: func() Source { return scriptedSource{run: run} }}
}

func spec(id mesh.ClusterID, hash string, a Access) Spec {
	return Spec{ID: id, Hash: hash, Credential: hash, Open: func([]string) (*Access, error) { return &a, nil }}
}

func secret(name string) Origin { return Origin{OriginSecret, "istio-system/" + name} }

// managerTest is a Manager with a real registry.
type managerTest struct {
	*Manager
	t        *testing.T
	registry *registry.Registry
	metrics  *prometheus.Registry
	log      *lines
	stop     func()
	host     string // of the checked endpoints

	mu        sync.Mutex
	snapshots [][]string // the addresses of hello in each snapshot
	pushed    int        // endpoints that changed, by service, summed over all snapshots
	now       time.Time
}

// lines collects the log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (w *managerTest) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *managerTest) pass(d time.Duration) {
	w.mu.Lock()
	w.now = w.now.Add(d)
	w.mu.Unlock()
}

func start(t *testing.T, change ...func(*Config)) *managerTest {
	t.Helper()
	w := &managerTest{t: t, metrics: prometheus.NewRegistry(), log: &lines{}, host: host, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	w.registry = registry.New(registry.Config{
		Local: "c1", Clusters: []mesh.ClusterID{"c1"}, SystemNamespace: mesh.DefaultSystemNamespace,
		Publish: w.publish, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	cfg := Config{
		Own: "c1", OwnOrigin: Origin{OriginOwn, "./c1"}, OwnAccess: access(serves("c1", hello("c1", "10.1.0.1"))),
		Registry: w.registry, RemoteTimeout: time.Minute, Grace: 5 * time.Minute,
		Log: slog.New(slog.NewTextHandler(w.log, nil)), Now: w.clock, Jitter: func() float64 { return 0 }, Metrics: w.metrics,
		timing: timing{gap: time.Microsecond, retry: time.Millisecond, longest: 10 * time.Millisecond, tick: time.Millisecond, lost: 10 * time.Second},
	}
	for _, f := range change {
		f(&cfg)
	}
	w.Manager = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = w.registry.Run(ctx) })
	done.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	w.stop = func() {
		cancel()
		done.Wait()
	}
	t.Cleanup(w.stop)
	return w
}

func (w *managerTest) publish(s *snapshot.Snapshot, c *snapshot.Changes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.snapshots = append(w.snapshots, w.addresses(s))
	w.pushed += len(c.Endpoints)
}

func (w *managerTest) addresses(s *snapshot.Snapshot) []string {
	var out []string
	if eps := s.Endpoints.Get(w.host); eps != nil {
		for _, e := range eps.ByPort["http"] {
			out = append(out, e.Address.String())
		}
	}
	return out
}

func (w *managerTest) until(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			list, problems := w.Status()
			w.t.Fatalf("%s: never; clusters %+v, problems %+v, snapshots %v\n%s", what, list, problems, w.snapshots, w.log)
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}

func (w *managerTest) has(want ...string) func() bool {
	return func() bool {
		s := w.registry.Current()
		return s != nil && slices.Equal(w.addresses(s), want)
	}
}

func (w *managerTest) status(id mesh.ClusterID) Status {
	list, _ := w.Status()
	for _, s := range list {
		if s.Cluster == id {
			return s
		}
	}
	return Status{}
}

// synced reports whether the manager has seen the cluster synced, which happens
// after the registry has published the cluster's objects.
func (w *managerTest) synced(id mesh.ClusterID) func() bool {
	return func() bool { return w.status(id).State == Synced }
}

func (w *managerTest) problem(text string) func() bool {
	return func() bool {
		_, list := w.Status()
		return slices.ContainsFunc(list, func(p Problem) bool { return strings.Contains(p.Reason, text) })
	}
}

// values returns the metrics, by name and labels.
func (w *managerTest) values() map[string]float64 {
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func TestClustersComeAndGo(t *testing.T) {
	w := start(t)
	w.until("own", w.has("10.1.0.1"))
	w.Set(secret("a"), []Spec{
		spec("c2", "1", access(serves("c2", hello("c2", "10.2.0.1")))),
		spec("c3", "2", access(serves("c3", hello("c3", "10.3.0.1")))),
	})
	w.until("two more", w.has("10.1.0.1", "10.2.0.1", "10.3.0.1"))
	w.until("c2 synced", w.synced("c2"))
	w.until("c3 synced", w.synced("c3"))
	if s := w.status("c2"); s.Origin != "istio-system/a" || s.Credential != "1" {
		t.Errorf("status %+v", s)
	}
	for text, want := range map[string]float64{
		"remote_cluster_secret_events_total event=add":                                   2,
		"istiod_managed_clusters cluster_type=local":                                     1,
		"istiod_managed_clusters cluster_type=remote":                                    2,
		"istiod_remote_cluster_sync_status cluster=c1 cluster_type=local status=synced":  1,
		"istiod_remote_cluster_sync_status cluster=c3 cluster_type=remote status=synced": 1,
		"meshctl_cluster_synced cluster=c2":                                              1,
		"meshctl_cluster_lost cluster=c2":                                                0,
	} {
		if got, ok := w.values()[text]; !ok || got != want {
			t.Errorf("%s is %v, want %v", text, got, want)
		}
	}
	w.Set(secret("a"), []Spec{spec("c3", "2", access(serves("c3", hello("c3", "10.3.0.1"))))})
	w.until("c2 gone", w.has("10.1.0.1", "10.3.0.1"))
	w.Set(secret("a"), nil)
	w.until("all gone", w.has("10.1.0.1"))
	w.until("no remote cluster", func() bool { list, _ := w.Status(); return len(list) == 1 && !w.Has("c2") })
	for name := range w.values() {
		if strings.Contains(name, "c2") {
			t.Errorf("a metric is left of a cluster that is gone: %s", name)
		}
	}
	w.stop()
	for _, want := range []string{
		"processing remote config event for istio-system/a", `"Adding cluster" cluster=c2 secret=istio-system/a`,
		"skipping update (kubeconfig are identical)", "Number of remote clusters: 2", "Number of remote clusters: 0",
	} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, w.log)
		}
	}
}

// TestClaimedTwice: of two secrets for a cluster the first counts and the second is
// reported. The second replaces a deleted first one without a gap. The own cluster is
// never replaced.
func TestClaimedTwice(t *testing.T) {
	w := start(t)
	w.Set(secret("b-first"), []Spec{spec("c2", "1", access(serves("c2", hello("c2", "10.2.0.1"))))})
	w.until("first", w.has("10.1.0.1", "10.2.0.1"))
	w.Set(secret("a-second"), []Spec{
		spec("c1", "9", access(serves("c1", hello("c1", "10.9.9.9")))),
		spec("c2", "2", access(serves("c2", hello("c2", "10.2.0.1", "10.2.0.2")))),
	})
	w.until("reported", w.problem("istio-system/b-first claims the cluster, too"))
	w.until("own cluster reported", w.problem("it has the name of the own cluster"))
	if s := w.status("c2"); s.Origin != "istio-system/b-first" || s.Credential != "1" {
		t.Errorf("the second took over: %+v", s)
	}
	w.Set(secret("b-first"), nil)
	w.until("taken over", w.has("10.1.0.1", "10.2.0.1", "10.2.0.2"))
	w.until("no conflict", func() bool {
		return !w.problem("claims the cluster, too")() && w.status("c2").Origin == "istio-system/a-second"
	})
	w.stop()
	w.never("10.9.9.9")
	w.always("10.2.0.1")
	for _, want := range []string{"ignoring cluster as it would overwrite the config cluster", "cluster has already been registered"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
}

// never and always check all snapshots from the first one with the address on.
func (w *managerTest) never(addr string) {
	w.t.Helper()
	for i, s := range w.snapshots {
		if slices.Contains(s, addr) {
			w.t.Fatalf("snapshot %d has %s: %v", i, addr, w.snapshots)
		}
	}
}

func (w *managerTest) always(addr string) {
	w.t.Helper()
	seen := false
	for i, s := range w.snapshots {
		if seen && !slices.Contains(s, addr) {
			w.t.Fatalf("snapshot %d lacks %s: %v", i, addr, w.snapshots)
		}
		seen = seen || slices.Contains(s, addr)
	}
	if !seen {
		w.t.Fatalf("no snapshot has %s", addr)
	}
}

// TestMalformedUpdate: the cluster keeps working after a malformed update.
func TestMalformedUpdate(t *testing.T) {
	w := start(t)
	good := spec("c2", "1", access(serves("c2", hello("c2", "10.2.0.1"))))
	w.Set(secret("a"), []Spec{good})
	w.until("read", w.has("10.1.0.1", "10.2.0.1"))
	w.until("synced", w.synced("c2"))
	for name, bad := range map[string]Spec{
		"unreadable": {ID: "c2", Hash: "2", Err: errors.New("kubeconfig is empty")},
		"refused": {ID: "c2", Hash: "3", Open: func([]string) (*Access, error) {
			return nil, errors.New("kubeconfig is not allowed: exec is not allowed")
		}},
	} {
		w.Set(secret("a"), []Spec{bad})
		w.until(name, w.problem("; the last good one stays in use"))
		if s := w.status("c2"); s.State != Synced || s.Credential != "1" {
			t.Errorf("%s: status %+v", name, s)
		}
		w.Set(secret("a"), []Spec{good})
		w.until("good again", func() bool { _, p := w.Status(); return len(p) == 0 })
	}
	w.Set(secret("b"), []Spec{{ID: "c4", Err: errors.New("kubeconfig is empty")}})
	w.until("a bad new one", w.problem("kubeconfig is empty"))
	if w.Has("c4") {
		t.Error("a cluster that cannot be used is there")
	}
	w.stop()
	w.always("10.2.0.1")
}

// TestFastUpdates: the last of many fast updates and deletions counts, even while the
// cluster is being read.
func TestFastUpdates(t *testing.T) {
	w := start(t)
	slow := func(ctx context.Context, sink snapshot.Sink) error {
		sink.Apply(hello("c2", "10.2.9.9")) // and never says Synced
		<-ctx.Done()
		return nil
	}
	w.Set(secret("a"), []Spec{spec("c2", "slow", access(slow))})
	w.until("reading", func() bool { return w.status("c2").State == Syncing })
	w.Set(secret("a"), []Spec{spec("c2", "1", access(serves("c2", hello("c2", "10.2.0.1"))))})
	w.until("updated while it is read", w.has("10.1.0.1", "10.2.0.1"))
	for i := range 100 {
		w.Set(secret("a"), []Spec{spec("c2", fmt.Sprint("many", i), access(serves("c2", hello("c2", "10.2.0.1", fmt.Sprintf("10.2.1.%d", i)))))})
	}
	w.until("the last", w.has("10.1.0.1", "10.2.0.1", "10.2.1.99"))
	w.Set(secret("a"), []Spec{spec("c2", "slow2", access(slow))})
	w.until("swap begins", func() bool { return w.status("c2").NextCredential == "slow2" })
	w.Set(secret("a"), []Spec{spec("c2", "many99", access(slow))}) // back to the spec in use
	w.until("swap is taken back", func() bool { return w.status("c2").NextCredential == "" })
	w.Set(secret("b"), []Spec{spec("c3", "slow", access(slow))})
	w.until("reading c3", func() bool { return w.Has("c3") })
	w.Set(secret("b"), nil)
	w.until("deleted while it is read", func() bool { return !w.Has("c3") })
	w.stop()
	w.never("10.2.9.9")
	w.always("10.2.0.1")
}

// TestRotationRemovesNothing: during 200 changes of the credential, every snapshot has the
// objects that both readers have, and objects of the old reader alone disappear.
func TestRotationRemovesNothing(t *testing.T) {
	w := start(t)
	var closed atomic.Int64
	for i := range 200 {
		a := access(serves("c2", hello("c2", "10.2.0.1", fmt.Sprintf("10.2.1.%d", i))))
		a.Close = func() { closed.Add(1) }
		w.Set(secret("a"), []Spec{spec("c2", fmt.Sprint(i), a)})
		w.until("rotated", w.has("10.1.0.1", "10.2.0.1", fmt.Sprintf("10.2.1.%d", i)))
	}
	w.until("old accesses are closed", func() bool { return closed.Load() == 199 })
	w.stop()
	w.always("10.2.0.1")
	if n := closed.Load(); n != 200 {
		t.Errorf("%d accesses were closed, want 200", n)
	}
}

// TestDeadCluster: a cluster that cannot be read delays the first snapshot by the timeout
// only, and is added when it can be read.
func TestDeadCluster(t *testing.T) {
	var alive atomic.Bool
	dead := Spec{ID: "c2", Hash: "1", Open: func([]string) (*Access, error) {
		return new(access(func(ctx context.Context, sink snapshot.Sink) error {
			if !alive.Load() {
				return errors.New("connection refused")
			}
			return serves("c2", hello("c2", "10.2.0.1"))(ctx, sink)
		})), nil
	}}
	w := start(t, func(c *Config) {
		c.RemoteTimeout = 50 * time.Millisecond
		c.Finders = []Finder{finder(func(ctx context.Context, registrar Registrar) error {
			registrar.Set(secret("a"), []Spec{dead})
			registrar.Listed()
			<-ctx.Done()
			return nil
		})}
	})
	w.until("served without it", w.has("10.1.0.1"))
	if s := w.status("c2"); s.State != Timeout || s.Reason != "connection refused" || s.LostSince.IsZero() {
		t.Errorf("status %+v", s)
	}
	if n := w.values()["remote_cluster_sync_timeouts_total cluster=c2"]; n != 1 {
		t.Errorf("%v timeouts, want 1", n)
	}
	alive.Store(true)
	w.until("back", w.has("10.1.0.1", "10.2.0.1"))
	w.until("synced", func() bool { return w.status("c2").State == Synced && w.status("c2").Reason == "" })
	if n := strings.Count(w.log.String(), "trying again"); n != 1 {
		t.Errorf("the reason was logged %d times, want once", n)
	}
}

type finder func(context.Context, Registrar) error

func (f finder) Run(ctx context.Context, registrar Registrar) error { return f(ctx, registrar) }

// TestFirstSnapshotHasAll: the first snapshot has all clusters that finders list at the
// start. Finders start after the own cluster was read.
func TestFirstSnapshotHasAll(t *testing.T) {
	var own atomic.Bool
	w := start(t, func(c *Config) {
		c.OwnAccess = access(func(ctx context.Context, sink snapshot.Sink) error {
			own.Store(true)
			return serves("c1", hello("c1", "10.1.0.1"))(ctx, sink)
		})
		c.Finders = []Finder{finder(func(ctx context.Context, registrar Registrar) error {
			if !own.Load() {
				t.Error("other clusters are looked for before the own one was read")
			}
			for i := 2; i < 50; i++ {
				id := mesh.ClusterID(fmt.Sprint("c", i))
				registrar.Set(secret(string(id)), []Spec{spec(id, "1", access(serves(id, hello(id, fmt.Sprintf("10.2.0.%d", i)))))})
			}
			registrar.Listed()
			<-ctx.Done()
			return nil
		})}
	})
	w.until("first", func() bool { return w.registry.Current() != nil })
	w.stop()
	if n := len(w.snapshots[0]); n != 49 {
		t.Errorf("the first snapshot has %d endpoints, want 49", n)
	}
}

// TestOwnClusterMustBeReadable: the Manager fails without the own cluster.
func TestOwnClusterMustBeReadable(t *testing.T) {
	m := New(Config{
		Own: "c1", OwnAccess: access(func(context.Context, snapshot.Sink) error { return errors.New("no such directory") }),
		Registry: registry.New(registry.Config{Local: "c1", Now: time.Now}), RemoteTimeout: time.Minute,
		Log: slog.New(slog.DiscardHandler), Now: time.Now, Jitter: func() float64 { return 0 }, Metrics: prometheus.NewRegistry(),
	})
	if err := m.Run(t.Context()); err == nil || err.Error() != "no such directory" {
		t.Errorf("error %v", err)
	}
}

// recorder is a handler that records its calls.
type recorder struct {
	mu    sync.Mutex
	calls []string
	slow  chan struct{} // when not nil, each call waits for it
}

func (r *recorder) note(text string) {
	if r.slow != nil {
		<-r.slow
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, text)
}

func (r *recorder) SetCluster(id mesh.ClusterID, c *rest.Config) {
	r.note(fmt.Sprint("set ", id, " ", c.Host))
}

func (r *recorder) RemoveCluster(id mesh.ClusterID) { r.note(fmt.Sprint("removed ", id)) }

func (r *recorder) said() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

func TestHandlers(t *testing.T) {
	fast, slow := &recorder{}, &recorder{slow: make(chan struct{})}
	w := start(t, func(c *Config) {
		c.Handlers = []Handler{fast, slow}
		c.OwnAccess.Config = &rest.Config{Host: "own"}
	})
	step := func(hash string, want ...string) {
		t.Helper()
		if hash == "" {
			w.Set(secret("a"), nil)
		} else {
			a := access(serves("c2", hello("c2", "10.2.0.1")))
			a.Config = &rest.Config{Host: hash}
			w.Set(secret("a"), []Spec{spec("c2", hash, a)})
		}
		w.until(strings.Join(want, ", "), func() bool { return slices.Equal(fast.said(), want) })
		w.until("credential", func() bool { return w.status("c2").Credential == hash })
	}
	step("1", "set c1 own", "set c2 1")
	w.until("synced", func() bool { return w.status("c2").State == Synced })
	step("2", "set c1 own", "set c2 1", "set c2 2")
	step("", "set c1 own", "set c2 1", "set c2 2", "removed c2")
	step("3", "set c1 own", "set c2 1", "set c2 2", "removed c2", "set c2 3")
	// The slow handler delayed no others, and its calls are consistent.
	close(slow.slow)
	w.until("slow", func() bool { return slices.Equal(slow.said(), []string{"set c1 own", "set c2 3"}) })
}

// TestHandlerSeesNewLife: a handler sees the removal of a cluster before it comes back,
// however fast that happens, and no cluster without an API.
func TestHandlerSeesNewLife(t *testing.T) {
	r := &recorder{}
	l := newHandlerQueue(r)
	told := func(want ...string) {
		t.Helper()
		for l.notifyNext() {
		}
		if !slices.Equal(r.calls, want) {
			t.Fatalf("got calls %q, want %q", r.calls, want)
		}
		r.calls = nil
	}
	set := func(id mesh.ClusterID, host string) { l.set(id, &rest.Config{Host: host}) }
	set("c", "1")
	told("set c 1")
	l.set("c", nil)
	set("c", "2")
	set("c", "3")
	told("removed c", "set c 3")
	set("c", "4")
	set("c", "5")
	told("set c 5")
	set("d", "1")
	l.set("d", nil)
	l.set("e", nil)
	told()
	l.set("c", nil)
	told("removed c")
}

// TestNothingLeaks: nothing is left of 500 clusters that were removed while being read.
func TestNothingLeaks(t *testing.T) {
	w := start(t)
	w.until("own", w.has("10.1.0.1"))
	before := runtime.NumGoroutine()
	var running atomic.Int64
	for i := range 500 {
		w.Set(secret("a"), []Spec{spec("c2", fmt.Sprint(i), access(func(ctx context.Context, sink snapshot.Sink) error {
			running.Add(1)
			defer running.Add(-1)
			if i%3 == 0 {
				return errors.New("connection refused")
			}
			return serves("c2", hello("c2", "10.2.0.1"))(ctx, sink)
		}))})
		w.until("there", func() bool { return w.status("c2").Credential == fmt.Sprint(i) })
		w.Set(secret("a"), nil)
		w.until("gone", func() bool { return !w.Has("c2") })
	}
	w.until("readings ended", func() bool { return running.Load() == 0 && runtime.NumGoroutine() <= before })
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.specs)+len(w.processed) > 0 {
		t.Errorf("origins are left: %v %v", w.specs, w.processed)
	}
}

// TestOnClusterLost: the endpoints of a lost cluster are kept, demoted or dropped as
// configured, until it recovers.
func TestOnClusterLost(t *testing.T) {
	tests := []struct {
		policy        mesh.OnLost
		setting       mesh.ClusterSetting
		lost, dropped snapshot.Balancing // at once, and after the grace
	}{
		{policy: mesh.Keep},
		{policy: "", setting: mesh.ClusterSetting{OnLost: mesh.Demote}, lost: snapshot.Balancing{Demoted: true}, dropped: snapshot.Balancing{Demoted: true}},
		{policy: mesh.Demote, setting: mesh.ClusterSetting{Weight: 20}, lost: snapshot.Balancing{Demoted: true, Weight: 20}, dropped: snapshot.Balancing{Demoted: true, Weight: 20}},
		{policy: mesh.Drop, lost: snapshot.Balancing{Demoted: true}, dropped: snapshot.Balancing{Demoted: true, Drained: true}},
		{policy: mesh.Drop, setting: mesh.ClusterSetting{OnLost: mesh.Keep}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.policy, tt.setting.OnLost), func(t *testing.T) {
			var report atomic.Pointer[Report]
			w := start(t, func(c *Config) {
				c.OnLost = tt.policy
				settings := &snapshot.ClusterSettings{
					Meta:     snapshot.Meta{Cluster: "c1", Namespace: "istio-system", Name: "meshctl-clusters"},
					Clusters: mesh.ClusterSettings{"c2": tt.setting},
				}
				c.OwnAccess = access(serves("c1", append(hello("c1", "10.1.0.1"), snapshot.Event{Key: settings.Key(), Object: settings})))
				c.Static = []StaticCluster{{Origin{OriginDirectory, "./c2"}, spec("c2", "1", Access{NewSource: func() Source {
					return scriptedSource{run: serves("c2", hello("c2", "10.2.0.1")), report: &report}
				}})}}
			})
			standing := func(want snapshot.Balancing) func() bool {
				want.Weight = tt.setting.Weight
				return func() bool {
					s := w.registry.Current()
					if s == nil || s.Endpoints.Get(host) == nil || len(s.Endpoints.Get(host).ByPort["http"]) != 2 {
						return false
					}
					e := s.Endpoints.Get(host).ByPort["http"][1]
					st := w.status("c2")
					return e.Drained == want.Drained && e.Demoted == want.Demoted && st.Drained == want.Drained && st.Demoted == want.Demoted
				}
			}
			w.until("there", standing(snapshot.Balancing{}))
			report.Store(&Report{LostSince: w.clock(), Cause: "tcp", Reason: "TCP: connection refused"})
			w.until("lost", func() bool { return w.status("c2").State == Lost && w.status("c2").Cause == "tcp" })
			if !standing(snapshot.Balancing{})() {
				t.Error("a cluster that was lost for a moment takes another part")
			}
			w.pass(10 * time.Second)
			w.until("lost for some time", standing(tt.lost))
			w.pass(5 * time.Minute)
			w.until("lost for long", standing(tt.dropped))
			report.Store(nil)
			w.until("back", standing(snapshot.Balancing{}))
			w.stop()
			w.always("10.2.0.1") // the generator leaves it out, where others have the service
		})
	}
}

// TestRecoveryIsNoStorm: when a cluster of 100 services is read again, only services with
// changed endpoints change.
func TestRecoveryIsNoStorm(t *testing.T) {
	objects := func(changed string) []snapshot.Event {
		out := hello("c2", changed)
		for i := range 100 {
			for _, e := range hello("c2", "10.2.0.1") {
				switch o := e.Object.(type) {
				case *snapshot.Service:
					o.Name = fmt.Sprint("s", i)
				case *snapshot.EndpointSlice:
					o.Name, o.Service = fmt.Sprint("s", i), fmt.Sprint("s", i)
				}
				out = append(out, snapshot.Event{Key: e.Object.Key(), Object: e.Object})
			}
		}
		return out
	}
	fail := make(chan error)
	var attempts atomic.Int64
	w := start(t, func(c *Config) {
		c.Static = []StaticCluster{{Origin{OriginDirectory, "./c2"}, spec("c2", "1", access(func(ctx context.Context, sink snapshot.Sink) error {
			n := attempts.Add(1)
			if n == 2 {
				return errors.New("connection refused")
			}
			sink.Apply(objects(fmt.Sprintf("10.2.0.%d", n)))
			sink.Synced("c2")
			select {
			case err := <-fail:
				return err
			case <-ctx.Done():
				return nil
			}
		}))}}
	})
	w.until("there", w.has("10.1.0.1", "10.2.0.1"))
	w.mu.Lock()
	before := w.pushed
	w.mu.Unlock()
	fail <- errors.New("connection reset")
	w.until("back", w.has("10.1.0.1", "10.2.0.3"))
	w.stop()
	if n := w.pushed - before; n != 1 {
		t.Errorf("the endpoints of %d services changed, want 1", n)
	}
}

// TestSettingsCountAtOnce: draining takes effect as soon as the settings change.
func TestSettingsCountAtOnce(t *testing.T) {
	sinks := make(chan snapshot.Sink, 1)
	w := start(t, func(c *Config) {
		c.OwnAccess = access(func(ctx context.Context, sink snapshot.Sink) error {
			sinks <- sink
			return serves("c1", hello("c1", "10.1.0.1"))(ctx, sink)
		})
	})
	var allowed atomic.Value
	w.Set(secret("a"), []Spec{{ID: "c2", Hash: "1", Open: func(allow []string) (*Access, error) {
		allowed.Store(allow)
		if len(allow) == 0 {
			return nil, errors.New("kubeconfig is not allowed: exec is not allowed")
		}
		return new(access(serves("c2", hello("c2", "10.2.0.1")))), nil
	}}})
	w.until("refused", w.problem("exec is not allowed"))
	sink := <-sinks
	set := func(s mesh.ClusterSettings) {
		o := &snapshot.ClusterSettings{Meta: snapshot.Meta{Cluster: "c1", Namespace: "istio-system", Name: "meshctl-clusters"}, Clusters: s}
		e := snapshot.Event{Key: o.Key(), Object: o}
		if s == nil {
			e.Object = nil
		}
		sink.Apply(append(hello("c1", "10.1.0.2"), e))
	}
	set(mesh.ClusterSettings{"c2": {Drain: true, Allow: []string{"exec"}}})
	w.until("allowed and drained", func() bool {
		return w.has("10.1.0.2", "10.2.0.1")() && w.status("c2").Drained && w.registry.Current().Endpoints.Get(host).ByPort["http"][1].Drained
	})
	if s := w.status("c2"); !slices.Equal(s.Setting.Allow, []string{"exec"}) {
		t.Errorf("permissions are missing in %+v", s)
	}
	set(mesh.ClusterSettings{"c2": {Allow: []string{"exec"}}})
	w.until("not drained", func() bool { return !w.registry.Current().Endpoints.Get(host).ByPort["http"][1].Drained })
	set(nil) // the permission is gone: the last good registration stays, with a problem
	w.until("refused again", w.problem("exec is not allowed; the last good one stays in use"))
	if !w.has("10.1.0.2", "10.2.0.1")() {
		t.Error("the endpoints are gone")
	}
}
