package dir_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/dir"
)

const rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: 'n'}\nspec: {host: a, trafficPolicy: {outlierDetection: {consecutiveErrors: 1}}}\n"

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

// TestWithoutEffect: objects without effect are problems, which are logged when they
// appear and disappear. The counts of other kinds are logged when they change.
func TestWithoutEffect(t *testing.T) {
	t.Parallel()
	const settings = "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {name: f}\n"
	const deployment = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n"
	w := start(t, map[string]string{
		"a.yaml": settings + deployment,
		"r.yaml": "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r}\n",
	})
	const group, route = "BackendTLSPolicy default/f: has no effect: no proxy uses it to check the backend's certificate", "r.yaml:1 HTTPRoute default/r: has no effect: no route is made of it"
	const unused = "level=INFO msg=\"configuration is not used\""
	w.logged(1, unused+" cluster=c file="+w.path("a.yaml")+" line=1 object=\"BackendTLSPolicy default/f\"")
	w.logged(1, "level=INFO msg=\"configuration is not used\" cluster=c file="+w.path("r.yaml")+" line=1 object=\"HTTPRoute default/r\"")
	w.logged(1, `skipped="BackendTLSPolicy 1, Deployment 1, HTTPRoute 1"`)
	w.problems("a.yaml:1 "+group, route)
	for _, p := range w.source.Status() {
		if p.Unenforced || !p.Shared {
			t.Errorf("%+v", p)
		}
	}

	w.write("a.yaml", "\n"+settings+deployment) // moves
	w.problems("a.yaml:2 "+group, route)
	w.logged(2, unused)
	w.write("c.yaml", "apiVersion: v1\nkind: service\nmetadata: {name: s, namespace: 'n'}\n")
	w.logged(1, `reason="kind: service is not read, did you mean Service?"`)
	w.logged(1, `skipped="BackendTLSPolicy 1, Deployment 1, HTTPRoute 1, service 1"`)

	w.must(os.Remove(w.path("a.yaml")))
	w.must(os.Remove(w.path("c.yaml")))
	w.logged(1, `msg="kinds that are not read" cluster=c dir=`+w.dir+` skipped="HTTPRoute 1"`)
	w.problems(route)
	w.write("a.yaml", settings) // another object, for all that is known
	w.logged(2, unused+" cluster=c file="+w.path("a.yaml"))
}

// TestUnreadPolicyRefuses: a PeerAuthentication of an unknown version refuses what it may, unless
// its last good version is in use.
func TestUnreadPolicyRefuses(t *testing.T) {
	t.Parallel()
	const policy = "apiVersion: security.istio.io/v9\nkind: PeerAuthentication\nmetadata: {name: p, namespace: 'n'}\nspec: {mtls: {mode: STRICT}}\n"
	w := start(t, map[string]string{"a.yaml": policy, "many.yaml": strings.Repeat("apiVersion: v1\nkind: Servic\nmetadata: {name: x}\n---\n", 200) + policy})
	closed := func(n int) func() bool {
		return func() bool {
			found := 0
			for _, p := range w.source.Status() {
				if p.Unenforced {
					t.Errorf("%s is not enforced", p.Object)
				}
				if strings.HasSuffix(p.Reason, source.ClosedMeaning) {
					found++
				}
			}
			return found == n
		}
	}
	w.until("two policies that refuse, one after many other problems", closed(2))
	w.must(os.Remove(w.path("many.yaml")))
	w.write("a.yaml", strings.Replace(policy, "v9", "v1", 1))
	w.until("a policy that is enforced", closed(0))
	w.write("a.yaml", policy)
	w.logged(1, "its last good version stays in use")
	w.until("a policy whose last good version is enforced", closed(0))
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
