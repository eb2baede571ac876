package workloadhealth

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the wait for an expected event.
const patience = 2 * time.Minute

// reportsTest is Reports with a clock that the test controls, and an API server with one
// WorkloadEntry and configurable faults.
type reportsTest struct {
	t *testing.T
	*Reports
	api *httptest.Server

	mu       sync.Mutex
	now      time.Time
	set      []string
	logs     strings.Builder
	results  map[string]int
	account  string
	checked  string // the value of the annotation
	there    bool
	revision int
	status   []json.RawMessage
	fail     int // number of patches that fail with failWith; negative means all
	failWith int
	patches  int
}

func (b *reportsTest) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.logs.Write(p)
}

func start(t *testing.T) *reportsTest {
	t.Helper()
	b := &reportsTest{
		t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), results: make(map[string]int),
		account: "vm", checked: "true", there: true, revision: 1,
	}
	b.api = httptest.NewTLSServer(b)
	t.Cleanup(b.api.Close)
	b.Reports = New(Config{
		Set: func(entry snapshot.PodKey, account string, is snapshot.Condition) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.set = append(b.set, fmt.Sprintf("%s %s %d", entry, account, is))
		},
		Written: func(_ mesh.ClusterID, result string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.results[result]++
		},
		Log: slog.New(slog.NewTextHandler(b, nil)),
		Now: func() time.Time {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.now
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.RemoveCluster("c1")
	})
	return b
}

func (b *reportsTest) access() {
	b.t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.api.Certificate().Raw})
	if err := b.SetCluster("c1", &rest.Config{Host: b.api.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}); err != nil {
		b.t.Fatal(err)
	}
}

// at is the path of the entry, in an old version.
const at = "/apis/networking.istio.io/v1beta1/namespaces/ns/workloadentries/vm-1"

func (b *reportsTest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	answer := func(code int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body)
	}
	refuse := func(code int) {
		answer(code, map[string]any{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reasonOf(code), "message": reasonOf(code),
		})
	}
	switch {
	case !b.there || !strings.HasPrefix(r.URL.Path, at):
		refuse(http.StatusNotFound)
	case r.Method == http.MethodGet:
		answer(http.StatusOK, map[string]any{
			"metadata": map[string]any{
				"resourceVersion": fmt.Sprint(b.revision), "annotations": map[string]string{mesh.AnnotationHealthChecks: b.checked},
			},
			"spec":   map[string]string{"serviceAccount": b.account},
			"status": map[string]any{"conditions": b.status},
		})
	case r.Method == http.MethodPatch && r.URL.Path == at+"/status":
		b.patches++
		if b.fail != 0 {
			b.fail--
			refuse(b.failWith)
			return
		}
		var patch struct {
			Metadata struct{ ResourceVersion string }
			Status   struct{ Conditions []json.RawMessage }
		}
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil || patch.Metadata.ResourceVersion != fmt.Sprint(b.revision) {
			refuse(http.StatusConflict)
			return
		}
		b.status, b.revision = patch.Status.Conditions, b.revision+1
		answer(http.StatusOK, map[string]any{})
	default:
		refuse(http.StatusMethodNotAllowed)
	}
}

func reasonOf(code int) string {
	return map[int]string{http.StatusNotFound: "NotFound", http.StatusConflict: "Conflict", http.StatusForbidden: "Forbidden"}[code]
}

// change changes the API server.
func (b *reportsTest) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// until waits until is returns true. It calls is with the lock held.
func (b *reportsTest) until(what string, is func() bool) {
	b.t.Helper()
	b.poll(what, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return is()
	})
}

// poll waits until is returns true. It calls is without the lock.
func (b *reportsTest) poll(what string, is func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.t.Fatalf("no %s within %v: status %s, results %v, log %s", what, patience, b.status, b.results, b.logs.String())
		}
		b.signal()
	}
}

// conditions returns the conditions of the entry, in short. The lock must be held.
func (b *reportsTest) conditions() string {
	var out []string
	for _, raw := range b.status {
		var c condition
		_ = json.Unmarshal(raw, &c)
		out = append(out, strings.TrimSpace(c.Type+"="+c.Status+" "+c.Message))
	}
	return strings.Join(out, ", ")
}

func (b *reportsTest) is(conditions string) func() bool {
	return func() bool { return b.conditions() == conditions }
}

// empty reports whether Reports is empty. The caller must not hold b.mu, as Reports
// calls the test with its own lock held.
func (b *reportsTest) empty() bool {
	b.Reports.mu.Lock()
	defer b.Reports.mu.Unlock()
	return len(b.entries)+len(b.streams)+len(b.look)+len(b.writing) == 0
}

// writes waits for n writes, and checks the conditions.
func (b *reportsTest) writes(n int, conditions string) {
	b.t.Helper()
	b.until(fmt.Sprintf("write %d", n), func() bool { return b.results[Updated] == n })
	b.until("condition "+conditions, b.is(conditions))
}

func (b *reportsTest) pass(d time.Duration) {
	b.change(func() { b.now = b.now.Add(d) })
	b.signal()
}

// report sends a report of a stream with the account.
func (b *reportsTest) report(stream, account, problem string) {
	who := mesh.Caller{Identity: mesh.Identity{TrustDomain: "td", Namespace: "ns", ServiceAccount: account}, Cluster: "c1"}
	b.Report(stream, who, proxy.Node{WorkloadEntry: "vm-1"}, problem)
}

// TestWritten: the reported health is written, other conditions stay, and the transition
// time changes only with the status.
func TestWritten(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.access()
	b.change(func() {
		b.status = []json.RawMessage{[]byte(`{"type":"Other","status":"True","extra":"kept"}`)}
		b.fail, b.failWith = 3, http.StatusConflict
	})
	b.report("s1", "vm", "refused")
	b.writes(1, "Other=True, Healthy=False refused")
	b.pass(restTime)
	b.report("s1", "vm", "")
	b.writes(2, "Other=True, Healthy=True")
	b.pass(restTime)
	b.report("s2", "vm", "")
	b.writes(3, "Other=True, Healthy=True")
	var c condition
	b.change(func() {
		if err := json.Unmarshal(b.status[1], &c); err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(b.status[0]), `"extra"`) {
			t.Errorf("the condition of another lost something: %s", b.status[0])
		}
	})
	if c.LastTransitionTime != "2026-01-01T00:00:01Z" || c.LastProbeTime != "2026-01-01T00:00:02Z" {
		t.Errorf("times: %+v", c)
	}
	want := []string{"c1/ns/vm-1 vm 2", "c1/ns/vm-1 vm 1"}
	b.change(func() {
		if !slices.Equal(b.set, want) || b.patches != 6 {
			t.Errorf("got %q and %d patches, want %q and 6", b.set, b.patches, want)
		}
	})
}

// TestFlappingHealth: a flapping workload costs one write per interval, with the last
// report.
func TestFlappingHealth(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.access()
	b.report("s", "vm", "")
	b.writes(1, "Healthy=True")
	for i := range 1000 {
		b.report("s", "vm", []string{"down", ""}[i%2])
	}
	b.report("s", "vm", "at last")
	b.change(func() {
		lines := strings.Count(b.logs.String(), "reported its health")
		if len(b.set) != 1 || b.patches != 1 || lines != 1 {
			t.Errorf("got %d changes, %d patches, %d lines of the log; want 1 of each", len(b.set), b.patches, lines)
		}
	})
	b.pass(restTime)
	b.until("last word", b.is("Healthy=False at last"))
	b.until("last word here", func() bool { return slices.Equal(b.set, []string{"c1/ns/vm-1 vm 1", "c1/ns/vm-1 vm 2"}) })
	b.change(func() {
		if b.patches != 2 {
			t.Errorf("%d patches, want 2", b.patches)
		}
	})
}

// TestGone: the condition stays for the grace period after the proxy has disconnected. It
// is removed then, unless the proxy is back or another writer has changed it.
func TestGone(t *testing.T) {
	t.Parallel()
	for _, other := range []bool{false, true} {
		b := start(t)
		b.access()
		b.report("s1", "vm", "")
		b.writes(1, "Healthy=True")
		b.Gone("s1")
		b.pass(Grace - time.Second)
		b.report("s2", "vm", "")
		b.writes(2, "Healthy=True")
		b.Gone("s1") // which is known to be gone
		b.pass(Grace)
		b.Gone("s2")
		want := "Healthy=True"
		if other {
			b.change(func() {
				b.status = []json.RawMessage{[]byte(`{"type":"Healthy","status":"True","lastProbeTime":"2026-01-01T00:00:30Z"}`)}
			})
		} else {
			want = ""
		}
		b.pass(Grace)
		b.until("end", func() bool { return b.conditions() == want && len(b.set) == 2 && b.set[1] == "c1/ns/vm-1 vm 0" })
		b.poll("nothing kept", b.empty)
	}
}

// TestRemovalIsRetried: if the removal of a condition fails, the registry forgets the
// health at once, and the removal is tried again.
func TestRemovalIsRetried(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.access()
	b.report("s", "vm", "")
	b.writes(1, "Healthy=True")
	b.change(func() { b.fail, b.failWith = -1, http.StatusForbidden })
	b.Gone("s")
	b.pass(Grace)
	b.until("failure", func() bool { return b.results[Failed] == 1 })
	b.change(func() {
		if want := "c1/ns/vm-1 vm 0"; len(b.set) != 2 || b.set[1] != want {
			t.Errorf("got %q, want %q last", b.set, want)
		}
		b.fail = 0
	})
	b.pass(lastRetry + restTime)
	b.writes(2, "")
	b.poll("nothing kept", b.empty)
	b.change(func() {
		if len(b.set) != 2 {
			t.Errorf("got %q: removed twice", b.set)
		}
	})
}

// TestOneClusterHangs: an API server that hangs does not delay other clusters.
func TestOneClusterHangs(t *testing.T) {
	t.Parallel()
	b := start(t)
	hanging, asked := make(chan struct{}), make(chan struct{}, 1000)
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-hanging
	}))
	t.Cleanup(api.Close)
	t.Cleanup(func() { close(hanging) })
	if err := b.SetCluster("c2", &rest.Config{Host: api.URL}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.RemoveCluster("c2") })
	for i := range 3 * maxWriting {
		who := mesh.Caller{Identity: mesh.Identity{TrustDomain: "td", Namespace: "ns", ServiceAccount: "vm"}, Cluster: "c2"}
		b.Report(fmt.Sprint("c2-", i), who, proxy.Node{WorkloadEntry: fmt.Sprint("vm-", i)}, "")
	}
	for range maxWriting {
		<-asked
	}
	b.access()
	b.report("s", "vm", "")
	b.writes(1, "Healthy=True")
	if len(asked) > 0 {
		t.Errorf("more than %d writes at once in one cluster", maxWriting)
	}
}

// TestNotWritten: a failed write is logged once and tried again, and the registry has the
// health all the same.
func TestNotWritten(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		broken, mended func(*reportsTest)
		want           string
	}{
		"forbidden": {
			func(b *reportsTest) { b.fail, b.failWith = -1, http.StatusForbidden }, func(b *reportsTest) { b.fail = 0 }, "orbidden",
		},
		"no entry":           {func(b *reportsTest) { b.there = false }, func(b *reportsTest) { b.there = true }, "there is no such WorkloadEntry"},
		"not health-checked": {func(b *reportsTest) { b.checked = "false" }, func(b *reportsTest) { b.checked = "TRUE" }, "annotate it with proxy.istio.io/health-checks-enabled=true"},
		"another account":    {func(b *reportsTest) { b.account = "other" }, func(b *reportsTest) { b.account = "vm" }, `it is of service account \"other\", the proxy that names it of \"vm\"`},
		"always changing":    {func(b *reportsTest) { b.fail, b.failWith = -1, http.StatusConflict }, func(b *reportsTest) { b.fail = 0 }, "other writers change it all the time"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			b.change(func() { tc.broken(b) })
			b.report("s", "vm", "") // before there is an API
			b.access()
			for range 3 {
				before := 0
				b.change(func() { before = b.results[Failed] })
				b.until("failure", func() bool { return b.results[Failed] > before || before == 3 })
				b.pass(lastRetry + restTime)
			}
			b.change(func() {
				if n := strings.Count(b.logs.String(), "cannot be written"); n != 1 || !strings.Contains(b.logs.String(), tc.want) {
					t.Errorf("logged %d times: %s, want %q", n, b.logs.String(), tc.want)
				}
				tc.mended(b)
			})
			b.pass(lastRetry + restTime)
			b.until("condition", b.is("Healthy=True"))
		})
	}
}

// TestReportsOfUnknownProxies: reports of proxies without a WorkloadEntry or a proved
// cluster are ignored. Reports of different accounts for one entry are separate.
func TestReportsOfUnknownProxies(t *testing.T) {
	t.Parallel()
	b := start(t)
	id := mesh.Identity{TrustDomain: "elsewhere", Namespace: "ns", ServiceAccount: "vm"}
	b.Report("s1", mesh.Caller{Identity: id}, proxy.Node{WorkloadEntry: "vm-1", Cluster: "c1"}, "")
	b.Report("s2", mesh.Caller{Identity: id, Cluster: "c1"}, proxy.Node{}, "")
	b.report("s3", "vm", "")
	b.report("s4", "other", "down")
	b.Gone("s1")
	b.Gone("s4")
	b.pass(Grace)
	want := []string{"c1/ns/vm-1 vm 1", "c1/ns/vm-1 other 2", "c1/ns/vm-1 other 0"}
	b.until("what was told", func() bool { return slices.Equal(b.set, want) })
}
