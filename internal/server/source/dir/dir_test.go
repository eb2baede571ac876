package dir_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/dir"
	"github.com/meshctl/meshctl/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline bounds the waits of tests, which normally take milliseconds.
const deadline = 2 * time.Minute

// watchedDir is a directory with a running source and the objects that it delivered.
type watchedDir struct {
	t      *testing.T
	dir    string
	source *dir.Source
	logs   *harness.LogBuffer

	mu      sync.Mutex
	objects map[string]string // "Service n/a" -> "file:line", or "" of what the object says
	batches []string          // one line for each batch: +new ~changed -gone
	synced  int
	changed chan struct{} // closed and renewed when something arrived
}

func (w *watchedDir) Apply(events []snapshot.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var batch []string
	for _, e := range events {
		name := string(e.Key.Kind) + " " + strings.TrimPrefix(e.Key.Namespace+"/"+e.Key.Name, "/")
		_, known := w.objects[name]
		switch {
		case e.Object == nil:
			delete(w.objects, name)
			batch = append(batch, "-"+name)
			continue
		case e.Object.Key() != e.Key:
			w.t.Errorf("object %s under key %s", e.Object.Key(), e.Key)
		case known:
			batch = append(batch, "~"+name)
		default:
			batch = append(batch, "+"+name)
		}
		w.objects[name] = w.place(e.Object)
	}
	w.batches = append(w.batches, strings.Join(batch, ", "))
	w.wake()
}

func (w *watchedDir) Synced(mesh.ClusterID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.synced++
	w.wake()
}

func (w *watchedDir) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// place returns the place of the object, and for a Service its first port, by which
// tests distinguish versions.
func (w *watchedDir) place(o snapshot.Object) string {
	var m snapshot.Meta
	var port string
	switch o := o.(type) {
	case *snapshot.Service:
		m = o.Meta
		if len(o.Ports) > 0 {
			port = fmt.Sprintf(" port %d", o.Ports[0].Number)
		}
	case *snapshot.Namespace:
		m = o.Meta
	case *snapshot.Secret:
		m = o.Meta
	case *snapshot.Gateway:
		m = o.Meta
	case *snapshot.DestinationRule:
		m = o.Meta
	}
	rel, err := filepath.Rel(w.dir, m.Place.File)
	if err != nil {
		return m.Place.String()
	}
	return fmt.Sprintf("%s:%d%s", rel, m.Place.Line, port)
}

// prepare makes a directory with the files, given by path, and a source of it that
// does not run yet.
func prepare(t *testing.T, files map[string]string) *watchedDir {
	t.Helper()
	w := &watchedDir{t: t, dir: t.TempDir(), logs: &harness.LogBuffer{}, objects: map[string]string{}, changed: make(chan struct{})}
	w.source = &dir.Source{Cluster: "c", Dir: w.dir, Now: time.Now, Log: slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w.write(name, files[name])
	}
	return w
}

func start(t *testing.T, files map[string]string) *watchedDir {
	t.Helper()
	w := prepare(t, files)
	w.run()
	return w
}

// run starts the source and waits until it is synced.
func (w *watchedDir) run() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.source.Run(ctx, w) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	w.until("synced", func() bool { return w.synced == 1 })
}

// until waits for the condition, which it checks after each batch and log line.
func (w *watchedDir) until(what string, ok func() bool) {
	w.t.Helper()
	end := time.After(deadline)
	for {
		w.mu.Lock()
		good, changed := ok(), w.changed
		w.mu.Unlock()
		if good {
			return
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond): // problems come without an event
		case <-end:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("%s: did not happen\nobjects: %v\nbatches: %q\nproblems: %v\nlog:\n%s", what, w.objects, w.batches, w.source.Status(), w.logs)
		}
	}
}

// wants waits until exactly these objects are delivered, with their places.
func (w *watchedDir) wants(want map[string]string) {
	w.t.Helper()
	w.until(fmt.Sprintf("objects %v", want), func() bool { return maps.Equal(w.objects, want) })
}

// problems waits for exactly these problems, as "file:line object: reason".
func (w *watchedDir) problems(want ...string) {
	w.t.Helper()
	w.until(fmt.Sprintf("problems %q", want), func() bool { return slices.Equal(w.shown(), want) })
}

func (w *watchedDir) shown() []string {
	var out []string
	for _, p := range w.source.Status() {
		rel, _ := filepath.Rel(w.dir, p.File)
		out = append(out, strings.ReplaceAll(fmt.Sprintf("%s:%d %s: %s", rel, p.Line, p.Object, p.Reason), w.dir+"/", ""))
	}
	return out
}

func (w *watchedDir) path(name string) string { return filepath.Join(w.dir, filepath.FromSlash(name)) }

// seen returns the batches so far.
func (w *watchedDir) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.batches)
}

// write writes a file and renames it to its place.
func (w *watchedDir) write(name, text string) {
	w.t.Helper()
	w.must(os.MkdirAll(filepath.Dir(w.path(name)), 0o755))
	temp := filepath.Join(filepath.Dir(w.path(name)), ".new")
	w.must(os.WriteFile(temp, []byte(text), 0o644))
	w.must(os.Rename(temp, w.path(name)))
}

func (w *watchedDir) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// barrier writes a new object and waits for it: all earlier events are then handled.
func (w *watchedDir) barrier() {
	w.t.Helper()
	w.mu.Lock()
	n := len(w.batches)
	w.mu.Unlock()
	name := fmt.Sprintf("barrier-%d", n)
	w.write(name+".yaml", namespace(name))
	w.until("barrier", func() bool { _, ok := w.objects["Namespace "+name]; return ok })
}

func namespace(name string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n"
}

func service(name string, port int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\n  namespace: 'n'\nspec:\n  ports:\n  - port: %d\n", name, port)
}

func TestFirstReading(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{
		"a.yaml":            service("a", 1) + "---\n" + service("b", 2),
		"sub/deeper/c.yml":  namespace("c"),
		"d.json":            `{"apiVersion": "v1", "kind": "List", "items": [` + "\n" + `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "d"}}` + "\n]}",
		"e.yaml":            "# nothing\n",
		"notes.txt":         "not: [read",
		".hidden.yaml":      "not: [read",
		".git/x.yaml":       "not: [read",
		"a.yaml~":           "not: [read",
		"#a.yaml#":          "not: [read",
		"deployments.yaml":  "apiVersion: apps/v1\nkind: Deployment\n---\napiVersion: apps/v1\nkind: Deployment\n---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n",
		"secret.yaml":       "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: YQ==}\n",
		"no-effect.yaml":    "\n" + rule,
		"kustomization.yml": "resources: []\n",
	})
	w.wants(map[string]string{
		"Service n/a": "a.yaml:1 port 1", "Service n/b": "a.yaml:10 port 2", "Namespace c": "sub/deeper/c.yml:1",
		"Namespace d": "d.json:2", "DestinationRule n/r": "no-effect.yaml:2", "Secret default/s": "secret.yaml:1",
	})
	const noRule = ":5 DestinationRule n/r: spec.trafficPolicy.outlierDetection.consecutiveErrors: has no effect: use consecutive5xxErrors"
	w.problems("kustomization.yml:1 : kind: is missing: not a Kubernetes object", "no-effect.yaml"+noRule)
	if n := len(w.seen()); n != 1 {
		t.Errorf("first reading came in %d batches, want 1", n)
	}
	for _, want := range []string{
		`skipped="Deployment 2, HorizontalPodAutoscaler 1"`,
		`level=WARN msg="configuration is not used" cluster=c file=` + w.path("no-effect.yaml") + ` line=5 object="DestinationRule n/r" reason="spec.trafficPolicy.outlierDetection.consecutiveErrors: has no effect: `,
		`level=WARN msg="configuration is not used" cluster=c file=` + w.path("kustomization.yml") + " line=1",
	} {
		if !strings.Contains(w.logs.String(), want) {
			t.Errorf("log lacks %s:\n%s", want, w.logs)
		}
	}
	w.write("no-effect.yaml", "\n\n"+rule)
	w.until("rule moved", func() bool { return w.objects["DestinationRule n/r"] == "no-effect.yaml:3" })
	if n := strings.Count(w.logs.String(), "has no effect"); n != 1 {
		t.Errorf("said %d times that the rule has no effect, want once", n)
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": service("a", 1) + "---\n" + service("b", 1)})

	w.write("a.yaml", service("a", 1)+"---\n"+service("b", 2))
	w.wants(map[string]string{"Service n/a": "a.yaml:1 port 1", "Service n/b": "a.yaml:10 port 2"})
	if got := w.seen()[1]; got != "~Service n/b" {
		t.Errorf("a change of one document came as %q", got)
	}

	w.write("new.yaml", namespace("new")) // added
	w.wants(map[string]string{"Service n/a": "a.yaml:1 port 1", "Service n/b": "a.yaml:10 port 2", "Namespace new": "new.yaml:1"})

	w.must(os.WriteFile(w.path("new.yaml"), []byte("\n"+namespace("new")), 0o644)) // written in place
	w.wants(map[string]string{"Service n/a": "a.yaml:1 port 1", "Service n/b": "a.yaml:10 port 2", "Namespace new": "new.yaml:2"})

	w.must(os.Rename(w.path("new.yaml"), w.path("other.yaml"))) // renamed
	w.wants(map[string]string{"Service n/a": "a.yaml:1 port 1", "Service n/b": "a.yaml:10 port 2", "Namespace new": "other.yaml:2"})
	if slices.Contains(w.seen(), "-Namespace new") {
		t.Errorf("a renamed file's object went and came: %q", w.seen())
	}

	w.must(os.Rename(w.path("other.yaml"), w.path("a.yaml"))) // renamed over
	w.wants(map[string]string{"Namespace new": "a.yaml:2"})

	w.must(os.Remove(w.path("a.yaml"))) // removed
	w.wants(map[string]string{})
	w.problems()
}

// logged waits for the number of log lines with the text.
func (w *watchedDir) logged(n int, text string) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d log lines with %s", n, text), func() bool { return strings.Count(w.logs.String(), text) == n })
}

// TestChangeIsLogged: one line sums up the changes of a batch.
func TestChangeIsLogged(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": service("a", 1) + "---\n" + service("b", 1)})
	line := `level=INFO msg="configuration changed" cluster=c files=1 file=` + w.path("a.yaml")
	w.write("a.yaml", service("a", 2)+"---\n"+service("b", 2))
	w.logged(1, line+" added=0 changed=2 removed=0\n")
	w.write("a.yaml", service("a", 2)+"---\n"+service("c", 2))
	w.logged(1, line+" added=1 changed=0 removed=1\n")
	w.write("a.yaml", service("a", 2)+"---\n"+service("c", 3))
	w.logged(1, line+` added=0 changed=1 removed=0 object="Service n/c"`)

	w.must(os.Rename(w.dir, w.dir+".old")) // several files at once
	w.must(os.MkdirAll(w.dir+".new", 0o755))
	for _, name := range []string{"a", "b"} {
		w.must(os.WriteFile(filepath.Join(w.dir+".new", name+".yaml"), []byte(service(name, 5)), 0o644))
	}
	w.must(os.Rename(w.dir+".new", w.dir))
	w.logged(1, `msg="configuration changed" cluster=c files=2 added=1 changed=1 removed=1`)
	w.logged(4, "configuration changed")
}

// TestLarge loads the objects of a large cluster; the log shows the time.
func TestLarge(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&all, "%s---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: s%d-x\n  namespace: 'n'\n  labels:\n    kubernetes.io/service-name: s%d\n"+
			"addressType: IPv4\nports:\n- name: http\n  port: 80\n  protocol: TCP\nendpoints:\n- addresses: [10.0.0.%d]\n  conditions: {ready: true}\n---\n", service(fmt.Sprintf("s%d", i), 80), i, i, i%250+1)
	}
	w := start(t, map[string]string{"all.yaml": all.String()})
	if len(w.objects) != 2000 {
		t.Errorf("got %d objects, want 2000", len(w.objects))
	}
	t.Log(w.logs)
}

// TestStatusIsACopy: a result of Status does not change later.
func TestStatusIsACopy(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": "a: ["})
	before := w.source.Status()
	kept := slices.Clone(before)
	w.write("a.yaml", "kind: x")
	w.until("another problem", func() bool { return len(w.shown()) == 1 && w.source.Status()[0].Reason != kept[0].Reason })
	if diff := cmp.Diff(kept, before); diff != "" {
		t.Errorf("status changed under its reader:\n%s", diff)
	}
}
