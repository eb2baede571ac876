package dir_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
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
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\n  namespace: n\nspec:\n  ports:\n  - port: %d\n", name, port)
}

const rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: n}\nspec: {host: a, trafficPolicy: {tunnel: {targetHost: b, targetPort: 1}}}\n"

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
	const noRule = ":5 DestinationRule n/r: spec.trafficPolicy.tunnel: has no effect: connections are not tunnelled"
	w.problems("kustomization.yml:1 : kind: is missing: not a Kubernetes object", "no-effect.yaml"+noRule)
	if n := len(w.seen()); n != 1 {
		t.Errorf("first reading came in %d batches, want 1", n)
	}
	for _, want := range []string{
		`skipped="Deployment 2, HorizontalPodAutoscaler 1"`,
		`level=WARN msg="configuration is not used" cluster=c file=` + w.path("no-effect.yaml") + ` line=5 object="DestinationRule n/r" reason="spec.trafficPolicy.tunnel: has no effect: `,
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

func TestStartFaults(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	file := filepath.Join(temp, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(temp, "none"): "does not exist: create it or name another",
		file:                        "is a file: name the directory that holds it",
	} {
		err := (&dir.Source{Dir: path}).Run(t.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
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

func TestSameContent(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": service("a", 1)})
	w.write("a.yaml", service("a", 1))
	w.must(os.Chtimes(w.path("a.yaml"), time.Time{}, time.Unix(1, 0)))
	w.barrier()
	if len(w.seen()) != 2 {
		t.Errorf("a file with the same content made batches: %q", w.seen())
	}
}

func TestFolders(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": namespace("a")})

	w.must(os.MkdirAll(w.path("x/y/z"), 0o755)) // created later, all at once
	w.write("x/y/z/b.yaml", namespace("b"))
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace b": "x/y/z/b.yaml:1"})

	w.must(os.Rename(w.path("x"), w.path("w"))) // renamed with all in it
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace b": "w/y/z/b.yaml:1"})
	w.write("w/y/z/b.yaml", "\n"+namespace("b")) // and still watched
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace b": "w/y/z/b.yaml:2"})

	w.must(os.RemoveAll(w.path("w")))
	w.wants(map[string]string{"Namespace a": "a.yaml:1"})
	w.write("w/c.yaml", namespace("c")) // created again
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace c": "w/c.yaml:1"})
	w.write("w/c.yaml", "\n"+namespace("c"))
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace c": "w/c.yaml:2"})

	w.must(os.RemoveAll(w.path("w"))) // a file takes the name of a folder, and back
	w.write("w", "x")
	w.must(os.Remove(w.path("w")))
	w.write("w/d.yaml", namespace("d"))
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace d": "w/d.yaml:1"})
}

func TestBrokenDocument(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"Service n/a": "a.yaml:1 port 1", "Service n/b": "a.yaml:10 port 2", "Service n/c": "a.yaml:19 port 3",
	}
	w := start(t, map[string]string{"a.yaml": service("a", 1) + "---\n" + service("b", 2) + "---\n" + service("c", 3)})
	w.wants(good)

	// A faulty field: its object stays as it was, the others change.
	w.write("a.yaml", service("a", 7)+"---\n"+service("b", 70000)+"---\n"+service("c", 8))
	w.wants(map[string]string{"Service n/a": "a.yaml:1 port 7", "Service n/b": "a.yaml:10 port 2", "Service n/c": "a.yaml:19 port 8"})
	w.problems("a.yaml:17 Service n/b: spec.ports[0].port: 70000 is not a port: want 1 to 65535; its last good version stays in use")

	// A broken document may be any object: b stays, and so does c, which is
	// no longer there.
	w.write("a.yaml", service("a", 7)+"---\nkind: Service\n  broken: here\n")
	w.problems("a.yaml:11 : mapping values are not allowed in this context; the 2 objects that it gave before stay in use")
	w.wants(map[string]string{"Service n/a": "a.yaml:1 port 7", "Service n/b": "a.yaml:10 port 2", "Service n/c": "a.yaml:19 port 8"})

	// Another change of the broken file keeps them, too.
	w.write("a.yaml", "kind: Service\n  broken: here\n---\n"+service("a", 9))
	w.wants(map[string]string{"Service n/a": "a.yaml:4 port 9", "Service n/b": "a.yaml:10 port 2", "Service n/c": "a.yaml:19 port 8"})

	// When the file is valid again, its missing objects are removed.
	w.write("a.yaml", service("a", 7)+"---\n"+service("b", 6))
	w.wants(map[string]string{"Service n/a": "a.yaml:1 port 7", "Service n/b": "a.yaml:10 port 6"})
	w.problems()

	// The objects of a removed file are removed, even if it was broken.
	w.write("a.yaml", "a: [")
	w.until("problem", func() bool { return len(w.shown()) == 1 })
	w.must(os.Remove(w.path("a.yaml")))
	w.wants(map[string]string{})
	w.problems()
}

func TestBrokenFromTheStart(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{
		"bad.yaml":  "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec:\n  servers:\n  - port:\n      number: http\n",
		"good.yaml": namespace("a"),
	})
	w.wants(map[string]string{"Namespace a": "good.yaml:1"})
	const problem = `bad.yaml:7 Gateway default/g: spec.servers[0].port.number: invalid value for uint32 field number: "http"`
	w.problems(problem)
	since := w.source.Status()[0].Since

	w.write("bad.yaml", "# a comment moves it\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec:\n  servers:\n  - port:\n      number: http\n")
	w.problems(strings.Replace(problem, ":7", ":8", 1))
	if !w.source.Status()[0].Since.Equal(since) {
		t.Error("the problem is the same, but its time changed")
	}
	if n := strings.Count(w.logs.String(), "configuration is not used"); n != 1 {
		t.Errorf("the problem was logged %d times, want once:\n%s", n, w.logs)
	}
	w.write("bad.yaml", namespace("b"))
	w.problems()
	if n := strings.Count(w.logs.String(), "problem of the configuration is gone"); n != 1 {
		t.Errorf("its end was logged %d times, want once:\n%s", n, w.logs)
	}
}

func TestWrittenInPlace(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": service("a", 1)})
	w.must(os.Truncate(w.path("a.yaml"), 0))
	w.problems("a.yaml:0 : the file is empty, as while it is being written; the object that it gave before stays in use")
	f, err := os.OpenFile(w.path("a.yaml"), os.O_WRONLY, 0)
	w.must(err)
	defer f.Close()
	text := service("a", 2)
	_, err = f.WriteString(text[:len(text)-25]) // half of it does not parse
	w.must(err)
	w.until("half a file", func() bool {
		return len(w.shown()) == 1 && strings.Contains(w.shown()[0], "could not find expected ':'")
	})
	_, err = f.WriteString(text[len(text)-25:])
	w.must(err)
	w.wants(map[string]string{"Service n/a": "a.yaml:1 port 2"})
	w.problems()
	for _, b := range w.seen() {
		if strings.Contains(b, "-") {
			t.Errorf("the object went while its file was written: %q", w.seen())
		}
	}
	if strings.Contains(w.logs.String(), "empty") {
		t.Errorf("an empty file is not worth a log line:\n%s", w.logs)
	}
}

func TestGivenTwice(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"b.yaml": service("a", 2) + "---\n" + service("a", 3), "c/x.yaml": service("a", 4)})
	w.wants(map[string]string{"Service n/a": "b.yaml:1 port 2"})
	w.problems("b.yaml:10 Service n/a: is given twice: the one at b.yaml:1 counts", "c/x.yaml:1 Service n/a: is given twice: the one at b.yaml:1 counts")

	w.write("a.yaml", service("a", 1)) // an earlier path takes over
	w.wants(map[string]string{"Service n/a": "a.yaml:1 port 1"})
	w.must(os.Remove(w.path("b.yaml"))) // nothing changes
	w.problems("c/x.yaml:1 Service n/a: is given twice: the one at a.yaml:1 counts")
	w.must(os.Remove(w.path("a.yaml"))) // the next one takes over
	w.wants(map[string]string{"Service n/a": "c/x.yaml:1 port 4"})
	w.problems()
	for _, b := range w.seen() {
		if strings.Contains(b, "-") {
			t.Errorf("the object went while another gave it: %q", w.seen())
		}
	}
}

// TestKubelet: a mounted ConfigMap changes all its files by one rename.
func TestKubelet(t *testing.T) {
	t.Parallel()
	w := prepare(t, nil)
	mount := func(version string, files map[string]string) {
		for name, text := range files {
			w.must(os.MkdirAll(filepath.Dir(w.path("m/.."+version+"/"+name)), 0o755))
			w.must(os.WriteFile(w.path("m/.."+version+"/"+name), []byte(text), 0o644))
		}
		w.must(os.Symlink(".."+version, w.path("m/..data_tmp")))
		w.must(os.Rename(w.path("m/..data_tmp"), w.path("m/..data")))
	}
	mount("2026_1", map[string]string{"a.yaml": service("a", 1), "b.yaml": service("b", 1), "sub/c.yaml": service("c", 1)})
	for _, name := range []string{"a.yaml", "b.yaml", "sub"} {
		w.must(os.Symlink("..data/"+name, w.path("m/"+name)))
	}
	w.run()
	w.wants(map[string]string{"Service n/a": "m/a.yaml:1 port 1", "Service n/b": "m/b.yaml:1 port 1", "Service n/c": "m/sub/c.yaml:1 port 1"})

	for i := 2; i < 20; i++ {
		mount(fmt.Sprintf("2026_%d", i), map[string]string{"a.yaml": service("a", i), "b.yaml": service("b", i), "sub/c.yaml": service("c", i)})
		w.must(os.RemoveAll(w.path(fmt.Sprintf("m/..2026_%d", i-1))))
		w.wants(map[string]string{
			"Service n/a": fmt.Sprintf("m/a.yaml:1 port %d", i), "Service n/b": fmt.Sprintf("m/b.yaml:1 port %d", i), "Service n/c": fmt.Sprintf("m/sub/c.yaml:1 port %d", i),
		})
	}
	for _, b := range w.seen() {
		if strings.Contains(b, "-") {
			t.Errorf("an object went during a swap: %q", w.seen())
		}
	}
	mount("2026_x", map[string]string{"a.yaml": service("a", 99), "sub/c.yaml": service("c", 99)}) // b is gone
	w.wants(map[string]string{"Service n/a": "m/a.yaml:1 port 99", "Service n/c": "m/sub/c.yaml:1 port 99"})
	w.must(os.Remove(w.path("m/b.yaml")))
	w.problems()
}

func TestSymlinks(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "x.yaml"), []byte(namespace("outside")), 0o644); err != nil {
		t.Fatal(err)
	}
	w := start(t, map[string]string{"real/a.txt": namespace("a"), "README": "x"})
	w.must(os.Symlink("real/a.txt", w.path("inside.yaml")))
	w.must(os.Symlink(filepath.Join(outside, "x.yaml"), w.path("outside.yaml")))
	w.must(os.Symlink(outside, w.path("outside")))
	w.must(os.Symlink("../README", w.path("readme")))
	w.must(os.Symlink("nothing", w.path("dangling.yaml")))
	w.must(os.Symlink("real", w.path("linked")))
	w.must(os.Symlink(".", w.path("loop")))
	w.must(os.Symlink("self.yaml", w.path("self.yaml")))
	w.wants(map[string]string{"Namespace a": "inside.yaml:1"})
	w.problems(
		"dangling.yaml:0 : the symlink points to nothing",
		"linked:0 : the symlink to a folder is not followed: only kubelet's form ..data/NAME is",
		"loop:0 : the symlink to a folder is not followed: only kubelet's form ..data/NAME is",
		"outside:0 : the symlink is not followed: links may not leave the directory",
		"outside.yaml:0 : the symlink is not followed: links may not leave the directory",
		"self.yaml:0 : the symlink is not followed: too many levels of symbolic links",
	)
	for _, name := range []string{"dangling.yaml", "linked", "loop", "outside", "outside.yaml", "self.yaml", "inside.yaml"} {
		w.must(os.Remove(w.path(name)))
	}
	w.problems()
	w.wants(map[string]string{})
}

func TestBounds(t *testing.T) {
	t.Parallel()
	bomb := "a0: &a0 {k: lol}\n"
	for i := range 40 {
		bomb += fmt.Sprintf("a%d: &a%d [*a%d, *a%d]\n", i+1, i+1, i, i)
	}
	w := start(t, map[string]string{
		"bomb.yaml":         bomb,
		"deep.yaml":         strings.Repeat("[", 5000),
		"large.yaml":        namespace("large") + strings.Repeat("# comment\n", dir.MaxFileSize/10),
		"many.yaml":         strings.Repeat("---\na: 1\n", dir.MaxDocuments+1),
		"items.yaml":        "kind: List\napiVersion: v1\nitems:\n" + strings.Repeat("- 1\n", dir.MaxDocuments+1),
		"binary.yaml":       "\x00\x01",
		"folder.yaml/a.txt": "",
		"good.yaml":         namespace("good"),
	})
	w.wants(map[string]string{"Namespace good": "good.yaml:1"})
	want := []string{
		"binary.yaml:1 : control characters are not allowed",
		"bomb.yaml:", "deep.yaml:1 : ",
		"items.yaml:0 : 19901 more problems are not shown",
		"items.yaml:20004 : the list holds more than 20000 objects: split it",
		"large.yaml:0 : is larger than 8 MiB: split it",
		"many.yaml:0 : holds more than 20000 documents: split it",
	}
	got := slices.DeleteFunc(w.shown(), func(s string) bool { return strings.Contains(s, "is not an object: want apiVersion") })
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("got problems %q, want %q", got, want)
	}
	if !strings.Contains(strings.Join(got, "\n"), "aliases add more than 1 MiB") {
		t.Errorf("the bomb was not named: %q", got)
	}
}

func TestTooManyFiles(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{"a.yaml": "", "b.yaml": "", "c/d.yaml": "", "c/e.yaml": ""})
	w.source.LimitFiles(4)
	w.run()
	w.problems(".:0 : holds more than 4 files and folders: not all are read", "c:0 : is not read wholly: the directory holds more than is read")
	w.write("c/e.yaml", namespace("last"))
	w.must(os.Remove(w.path("a.yaml")))
	w.wants(map[string]string{"Namespace last": "c/e.yaml:1"})
	w.problems()
}

func TestUnreadable(t *testing.T) {
	t.Parallel()
	if os.Getuid() == 0 {
		t.Skip("root reads everything")
	}
	w := start(t, map[string]string{"a.yaml": service("a", 1)})
	w.must(os.Chmod(w.path("a.yaml"), 0))
	w.problems("a.yaml:0 : permission denied; the object that it gave before stays in use")
	w.must(os.Chmod(w.path("a.yaml"), 0o644))
	w.problems()
	w.wants(map[string]string{"Service n/a": "a.yaml:1 port 1"})
}

// TestDirectoryReplaced: another directory with the same name is read.
func TestDirectoryReplaced(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": namespace("a"), "sub/b.yaml": namespace("b")})
	w.must(os.Rename(w.dir, w.dir+".old"))
	w.until("directory gone", func() bool {
		return len(w.shown()) == 1 && strings.HasPrefix(w.shown()[0], ".:0 : the directory is gone; its objects stay in use until it is back")
	})
	w.wants(map[string]string{"Namespace a": "a.yaml:1", "Namespace b": "sub/b.yaml:1"})
	w.must(os.MkdirAll(filepath.Join(w.dir+".new", "sub"), 0o755))
	w.must(os.WriteFile(filepath.Join(w.dir+".new", "sub", "b.yaml"), []byte("\n"+namespace("b")), 0o644))
	w.must(os.Rename(w.dir+".new", w.dir))
	w.wants(map[string]string{"Namespace b": "sub/b.yaml:2"})
	w.problems()
	w.write("sub/b.yaml", namespace("b")) // and is watched
	w.wants(map[string]string{"Namespace b": "sub/b.yaml:1"})
}

// logged waits for the number of log lines with the text.
func (w *watchedDir) logged(n int, text string) {
	w.t.Helper()
	w.until(fmt.Sprintf("%d log lines with %s", n, text), func() bool { return strings.Count(w.logs.String(), text) == n })
}

// TestWithoutEffect: objects without effect are problems, which are logged when they
// appear and disappear. The counts of other kinds are logged when they change.
func TestWithoutEffect(t *testing.T) {
	t.Parallel()
	const machines = "apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: f}\n"
	const deployment = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n"
	w := start(t, map[string]string{
		"a.yaml": machines + deployment,
		"r.yaml": "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r}\n",
	})
	const group, route = "WorkloadGroup default/f: has no effect: no WorkloadEntry is made of it", "r.yaml:1 HTTPRoute default/r: has no effect: no route is made of it"
	const unused = "level=WARN msg=\"configuration is not used\""
	w.logged(1, unused+" cluster=c file="+w.path("a.yaml")+" line=1 object=\"WorkloadGroup default/f\"")
	w.logged(1, "level=INFO msg=\"configuration is not used\" cluster=c file="+w.path("r.yaml")+" line=1 object=\"HTTPRoute default/r\"")
	w.logged(1, `skipped="Deployment 1, HTTPRoute 1, WorkloadGroup 1"`)
	w.problems("a.yaml:1 "+group, route)
	for _, p := range w.source.Status() {
		if p.Unenforced || p.Shared != strings.HasPrefix(p.Object, "HTTPRoute") {
			t.Errorf("%+v", p)
		}
	}

	w.write("a.yaml", "\n"+machines+deployment) // moves
	w.problems("a.yaml:2 "+group, route)
	w.logged(1, unused)
	w.write("c.yaml", "apiVersion: v1\nkind: service\nmetadata: {name: s, namespace: n}\n")
	w.logged(1, `reason="kind: service is not read, did you mean Service?"`)
	w.logged(1, `skipped="Deployment 1, HTTPRoute 1, WorkloadGroup 1, service 1"`)

	w.must(os.Remove(w.path("a.yaml")))
	w.must(os.Remove(w.path("c.yaml")))
	w.logged(1, `msg="kinds that are not read" cluster=c dir=`+w.dir+` skipped="HTTPRoute 1"`)
	w.problems(route)
	w.write("a.yaml", machines) // another object, for all that is known
	w.logged(2, unused+" cluster=c file="+w.path("a.yaml"))
}

// TestBrokenPolicyIsNotEnforced: a faulty PeerAuthentication counts as not enforced,
// unless its last good version is in use.
func TestBrokenPolicyIsNotEnforced(t *testing.T) {
	t.Parallel()
	const policy = "apiVersion: security.istio.io/v9\nkind: PeerAuthentication\nmetadata: {name: p, namespace: n}\nspec: {mtls: {mode: STRICT}}\n"
	w := start(t, map[string]string{"a.yaml": policy, "many.yaml": strings.Repeat("apiVersion: v1\nkind: Servic\nmetadata: {name: x}\n---\n", 200) + policy})
	unenforced := func(n int) func() bool {
		return func() bool {
			found := 0
			for _, p := range w.source.Status() {
				if p.Unenforced {
					found++
				}
			}
			return found == n
		}
	}
	w.until("two policies that are not enforced, one after many other problems", unenforced(2))
	w.must(os.Remove(w.path("many.yaml")))
	w.write("a.yaml", strings.Replace(policy, "v9", "v1", 1))
	w.until("a policy that is enforced", unenforced(0))
	w.write("a.yaml", policy)
	w.logged(1, "its last good version stays in use")
	w.until("a policy whose last good version is enforced", unenforced(0))
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

// TestFaultReplaced: if a fault replaces another one, only the new one is logged.
// Faults that are gone are logged before new ones.
func TestFaultReplaced(t *testing.T) {
	t.Parallel()
	w := start(t, map[string]string{"a.yaml": service("a", 70000), "b.yaml": namespace("b")})
	w.write("a.yaml", service("a", 70001))
	w.logged(1, "70001 is not a port")
	w.write("a.yaml", "a: [") // may be any object
	w.logged(1, "did not find expected node content")
	w.logged(0, "problem of the configuration is gone")
	w.write("a.yaml", service("a", 70002))
	w.logged(1, "70002 is not a port")
	log := w.logs.String()
	if gone, came := strings.Index(log, "is gone"), strings.Index(log, "70002"); gone < 0 || gone > came {
		t.Errorf("the problem that is gone was not logged first:\n%s", log)
	}
	w.must(os.Symlink("nothing", w.path("c.yaml")))
	w.logged(1, "file="+w.path("c.yaml")+` reason="the symlink points to nothing"`)
}

// TestMovedAwayAndBack: changes are seen after a move away and back, although a move
// ends the watch.
func TestMovedAwayAndBack(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{".", "sub", "sub/deeper"} {
		for _, elsewhere := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s elsewhere %t", folder, elsewhere), func(t *testing.T) {
				t.Parallel()
				file := path.Join(folder, "a.yaml")
				w := start(t, map[string]string{file: service("a", 1)})
				away := w.path(folder) + ".away"
				if elsewhere {
					away = filepath.Join(t.TempDir(), "away")
				}
				for i := range 5 {
					w.must(os.Rename(w.path(folder), away))
					w.must(os.Rename(away, w.path(folder)))
					w.write(file, service("a", i+1)) // the first may be found by looking again
					w.wants(map[string]string{"Service n/a": fmt.Sprintf("%s:1 port %d", file, i+1)})
					w.write(file, service("a", i+100)) // this one by its event alone
					w.wants(map[string]string{"Service n/a": fmt.Sprintf("%s:1 port %d", file, i+100)})
				}
				w.problems()
			})
		}
	}
}

// TestRenamedFilesAreNeverGone: objects of a file that is renamed during a listing, so
// that both of its names are missed, are not removed.
func TestRenamedFilesAreNeverGone(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range 50 {
		files[fmt.Sprintf("other-%d.yaml", i)] = namespace(fmt.Sprintf("other-%d", i))
	}
	names := [8][2]string{}
	for i := range names {
		names[i] = [2]string{fmt.Sprintf("a%d.yaml", i), fmt.Sprintf("z%d.yaml", i)}
		files[names[i][0]] = service(fmt.Sprintf("s%d", i), 80)
	}
	w := start(t, files)
	for round := range 300 {
		for _, n := range names {
			w.must(os.Rename(w.path(n[round%2]), w.path(n[1-round%2])))
		}
		if round%10 == 0 {
			w.barrier()
		}
	}
	w.barrier()
	for _, b := range w.seen() {
		if strings.Contains(b, "-Service") {
			t.Errorf("a file was renamed, and its object went: %s", b)
		}
	}
}

// TestStorm: after many random changes, exactly the existing objects are delivered.
func TestStorm(t *testing.T) {
	t.Parallel()
	w := start(t, nil)
	want := map[string]string{}
	for i := range 400 {
		folder, name := fmt.Sprintf("d%d", i%7), fmt.Sprintf("f%d", i%31)
		file := folder + "/" + name + ".yaml"
		object := "Service n/" + folder + "-" + name
		switch i % 5 {
		case 0, 1, 2:
			w.write(file, service(folder+"-"+name, i+1))
			want[object] = fmt.Sprintf("%s:1 port %d", file, i+1)
		case 3:
			_ = os.Remove(w.path(file))
			delete(want, object)
		case 4:
			if i%20 == 4 {
				w.must(os.RemoveAll(w.path(folder)))
				maps.DeleteFunc(want, func(o, _ string) bool { return strings.HasPrefix(o, "Service n/"+folder+"-") })
			}
		}
	}
	w.wants(want)
	w.problems()
}

// TestLarge loads the objects of a large cluster; the log shows the time.
func TestLarge(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&all, "%s---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: s%d-x\n  namespace: n\n  labels:\n    kubernetes.io/service-name: s%d\n"+
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
