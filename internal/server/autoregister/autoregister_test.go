package autoregister

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the wait for an expected event.
const patience = 2 * time.Minute

const (
	groups    = "/apis/networking.istio.io/v1/namespaces/bank/workloadgroups/"
	entries   = "/apis/networking.istio.io/v1/namespaces/bank/workloadentries/"
	entryName = "ledger-192.0.2.7-dc"
)

const group = `{
  "apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup", "metadata": {"name": "ledger", "namespace": "bank", "uid": "u1"},
  "spec": {
    "metadata": {"labels": {"app": "ledger", "tier": "group"}, "annotations": {"team": "money"}},
    "template": {"serviceAccount": "ledger", "network": "template", "ports": {"http": 9090}, "labels": {"app": "template", "zone": "a"}}
  }
}`

// api is an API server with some objects by path, and a clock.
type api struct {
	t   *testing.T
	srv *httptest.Server

	mu       sync.Mutex
	now      time.Time
	objects  map[string]*unstructured.Unstructured
	revision int
	logs     strings.Builder
	results  map[string]int
}

func newAPI(t *testing.T, objects map[string]string) *api {
	t.Helper()
	a := &api{
		t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), objects: make(map[string]*unstructured.Unstructured), results: make(map[string]int),
	}
	for at, text := range objects {
		a.put(at, []byte(text))
	}
	a.srv = httptest.NewTLSServer(a)
	t.Cleanup(a.srv.Close)
	return a
}

// Write implements io.Writer for the log.
func (a *api) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.logs.Write(p)
}

func (a *api) put(at string, text []byte) *unstructured.Unstructured {
	o := new(unstructured.Unstructured)
	if err := o.UnmarshalJSON(text); err != nil {
		a.t.Error(err)
	}
	a.revision++
	o.SetResourceVersion(fmt.Sprint(a.revision))
	a.objects[at] = o
	return o
}

// ServeHTTP implements http.Handler: it gets, applies, deletes, and lists all entries.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	answer := func(code int, o any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(o)
	}
	refuse := func(code int, reason string) {
		answer(code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason})
	}
	o := a.objects[r.URL.Path]
	switch {
	case r.URL.Path == "/apis/networking.istio.io/v1/workloadentries":
		var items []any
		for _, at := range slices.Sorted(maps.Keys(a.objects)) {
			if strings.HasPrefix(at, entries) {
				items = append(items, map[string]any{"metadata": a.objects[at].Object["metadata"]})
			}
		}
		answer(http.StatusOK, map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": items})
	case r.Method == http.MethodPatch:
		var patch unstructured.Unstructured
		if err := patch.UnmarshalJSON(body); err != nil {
			a.t.Error(err)
		}
		if v := patch.GetResourceVersion(); v != "" && (o == nil || v != o.GetResourceVersion()) {
			refuse(http.StatusConflict, "Conflict")
			return
		}
		answer(http.StatusOK, a.put(r.URL.Path, body))
	case o == nil:
		refuse(http.StatusNotFound, "NotFound")
	case r.Method == http.MethodDelete:
		if !strings.Contains(string(body), `"resourceVersion":"`+o.GetResourceVersion()+`"`) {
			refuse(http.StatusConflict, "Conflict")
			return
		}
		delete(a.objects, r.URL.Path)
		answer(http.StatusOK, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	default:
		answer(http.StatusOK, o)
	}
}

func (a *api) entry() *unstructured.Unstructured {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.objects[entries+entryName]
}

func (a *api) log() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.logs.String()
}

func (a *api) advance(by time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = a.now.Add(by)
}

func (a *api) eventually(what string, ok func() bool) {
	a.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			a.t.Fatalf("did not come: %s\n%s", what, a.log())
		}
	}
}

func (a *api) annotation(name string) string {
	o := a.entry()
	if o == nil {
		return ""
	}
	return o.GetAnnotations()[name]
}

// controller starts a control plane with access to the API.
func (a *api) controller(name string) *Registrations {
	a.t.Helper()
	r := New(Config{
		Controller: name, MaxAge: 30 * time.Minute, Log: slog.New(slog.NewTextHandler(a, nil)),
		Written: func(_ mesh.ClusterID, result string) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.results[result]++
		},
		Now: func() time.Time {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.now
		},
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.srv.Certificate().Raw})
	if err := r.SetCluster("c1", &rest.Config{Host: a.srv.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}); err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	a.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			a.t.Error(err)
		}
		r.RemoveCluster("c1")
	})
	return r
}

func caller(account string) mesh.Caller {
	return mesh.Caller{Cluster: "c1", Identity: mesh.Identity{TrustDomain: "td", Namespace: "bank", ServiceAccount: account}}
}

func node() proxy.Node {
	return proxy.Node{
		ID: mesh.NodeID{IP: netip.MustParseAddr("192.0.2.7")}, WorkloadEntry: entryName, WorkloadGroup: "ledger", ReportsHealth: true,
		Network: "dc", Locality: mesh.Locality{Region: "eu", Zone: "a"}, Labels: map[string]string{"version": "v1", "tier": "proxy"},
	}
}

// TestRegistration: a machine has an entry from its first stream until the grace period after
// its last one.
func TestRegistration(t *testing.T) {
	a := newAPI(t, map[string]string{groups + "ledger": group})
	r := a.controller("one")
	gone := r.Connected(caller("ledger"), node())
	a.eventually("the entry", func() bool { return a.entry() != nil })
	got := a.entry()
	labels := map[string]any{"app": "ledger", "tier": "proxy", "zone": "a", "version": "v1"}
	want := map[string]any{
		"apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry",
		"metadata": map[string]any{
			"name": entryName, "namespace": "bank", "resourceVersion": got.GetResourceVersion(), "labels": labels,
			"annotations": map[string]any{
				"team": "money", "istio.io/autoRegistrationGroup": "ledger", "istio.io/workloadController": "one",
				"istio.io/connectedAt": "2026-01-01T00:00:00Z", "proxy.istio.io/health-checks-enabled": "true",
			},
			"ownerReferences": []any{map[string]any{
				"apiVersion": "networking.istio.io/v1", "kind": "WorkloadGroup", "name": "ledger", "uid": "u1", "controller": true,
			}},
		},
		"spec": map[string]any{
			"address": "192.0.2.7", "labels": labels, "serviceAccount": "ledger", "network": "dc", "locality": "eu/a",
			"ports": map[string]any{"http": int64(9090)},
		},
	}
	if diff := cmp.Diff(want, got.Object); diff != "" {
		t.Errorf("the entry (-want +got):\n%s", diff)
	}

	gone()
	a.eventually("disconnectedAt", func() bool {
		return a.annotation(annotationDisconnected) == "2026-01-01T00:00:00Z" && a.annotation(annotationConnected) == ""
	})
	a.advance(Grace / 2)
	gone = r.Connected(caller("ledger"), node())
	a.eventually("the second connection", func() bool {
		return a.annotation(annotationConnected) == "2026-01-01T00:00:05Z" && a.annotation(annotationDisconnected) == ""
	})
	a.advance(2 * Grace)
	gone()
	a.eventually("disconnectedAt", func() bool { return a.annotation(annotationDisconnected) == "2026-01-01T00:00:25Z" })
	a.advance(Grace)
	a.eventually("the end of the entry", func() bool { return a.entry() == nil })
	a.eventually("its log line", func() bool { return strings.Contains(a.log(), "its registration ended") })
}

// TestElsewhere: a control plane leaves an entry alone that another one has taken over.
func TestElsewhere(t *testing.T) {
	a := newAPI(t, map[string]string{groups + "ledger": group})
	one, two := a.controller("one"), a.controller("two")
	gone := one.Connected(caller("ledger"), node())
	a.eventually("the entry of one", func() bool { return a.annotation(annotationController) == "one" })
	two.Connected(caller("ledger"), node())
	a.eventually("the entry of two", func() bool { return a.annotation(annotationController) == "two" })
	gone()
	a.advance(2 * Grace)
	a.eventually("one to forget the machine", func() bool {
		one.mu.Lock()
		defer one.mu.Unlock()
		return len(one.machines) == 0
	})
	if a.annotation(annotationController) != "two" || a.annotation(annotationConnected) == "" {
		t.Errorf("the entry is now %v", a.entry())
	}
}

// TestOtherAccount: a proxy with another service account that names the entry of a machine neither
// blocks its registration nor keeps its entry, and does not take the entry over with a group of
// its own. An entry of the version before has the same name and is taken over.
func TestOtherAccount(t *testing.T) {
	others := strings.NewReplacer(`"ledger"`, `"other"`, `"u1"`, `"u2"`).Replace(group)
	a := newAPI(t, map[string]string{
		groups + "ledger": group, groups + "other": others,
		entries + entryName: `{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"name":"` + entryName + `","namespace":"bank","annotations":{"` +
			annotationGroup + `":"ledger","` + annotationController + `":"before"}},"spec":{"address":"192.0.2.7","serviceAccount":"ledger"}}`,
	})
	r := a.controller("one")
	attempts := func(n int) {
		t.Helper()
		a.eventually("failed attempts", func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.results[Failed] >= n
		})
	}
	foreign := node()
	foreign.WorkloadGroup, foreign.ID.IP = "other", netip.MustParseAddr("192.0.2.66")
	gone := r.Connected(caller("ledger"), node())
	a.eventually("the entry", func() bool { return a.annotation(annotationController) == "one" })
	r.Connected(caller("other"), node())
	attempts(1)
	r.Connected(caller("other"), foreign)
	attempts(2)
	if address, _, _ := unstructured.NestedString(a.entry().Object, "spec", "address"); address != "192.0.2.7" {
		t.Errorf("the entry is now %v", a.entry())
	}
	// The machine connects again, while the other proxy stays.
	again := r.Connected(caller("ledger"), node())
	gone()
	a.eventually("the second registration", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.results[Registered] == 2
	})
	again()
	a.eventually("disconnectedAt", func() bool { return a.annotation(annotationDisconnected) != "" })
	a.advance(Grace)
	a.eventually("the end of the entry", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.results[Deleted] == 1
	})
}

// TestRefusals: a machine is not registered without a group, with another service account, or
// over the entry of a user; the log states the reason once.
func TestRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		objects map[string]string
		account string
		want    string
	}{
		"no group":        {nil, "ledger", "there is no WorkloadGroup bank/ledger"},
		"another account": {map[string]string{groups + "ledger": group}, "other", `WorkloadGroup bank/ledger is of service account \"ledger\"`},
		"entry of a user": {
			map[string]string{
				groups + "ledger":   group,
				entries + entryName: `{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"name":"` + entryName + `","namespace":"bank"}}`,
			}, "ledger", "there is such a WorkloadEntry, which no registration made",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, tt.objects)
			before := a.entry()
			r := a.controller("one")
			r.Connected(caller(tt.account), node())
			for range 3 {
				n := 0
				a.eventually("an attempt", func() bool {
					a.mu.Lock()
					defer a.mu.Unlock()
					n = a.results[Failed]
					return n > 0
				})
				a.advance(lastRetry)
				a.eventually("another attempt", func() bool {
					a.mu.Lock()
					defer a.mu.Unlock()
					return a.results[Failed] > n
				})
			}
			if n := strings.Count(a.log(), tt.want); n != 1 {
				t.Errorf("the log has %q %d times:\n%s", tt.want, n, a.log())
			}
			if a.entry() != before {
				t.Errorf("the entry is now %v", a.entry())
			}
		})
	}
}

// TestOtherProxies: a proxy without a group, or whose cluster is not proved, is not registered.
func TestOtherProxies(t *testing.T) {
	r := New(Config{Now: time.Now})
	plain, unproved := node(), caller("ledger")
	plain.WorkloadGroup, unproved.Cluster = "", ""
	r.Connected(caller("ledger"), plain)()
	r.Connected(unproved, node())()
	if len(r.machines) > 0 {
		t.Errorf("machines: %v", r.machines)
	}
}

// TestDeleteAbandoned: entries whose control plane has ended are deleted, and no others.
func TestDeleteAbandoned(t *testing.T) {
	entry := func(annotations string) string {
		return `{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"namespace":"bank","name":"NAME","annotations":{` + annotations + `}}}`
	}
	const ours = `"istio.io/autoRegistrationGroup":"g"`
	objects := map[string]string{
		"gone":       entry(ours + `,"istio.io/disconnectedAt":"2025-12-31T23:59:30Z"`),
		"just-gone":  entry(ours + `,"istio.io/disconnectedAt":"2025-12-31T23:59:45Z"`),
		"connected":  entry(ours + `,"istio.io/connectedAt":"2025-12-31T23:20:00Z"`),
		"stale":      entry(ours + `,"istio.io/connectedAt":"2025-12-31T23:10:00Z"`),
		"of-a-user":  entry(`"istio.io/disconnectedAt":"2025-12-31T00:00:00Z"`),
		"unreadable": entry(ours + `,"istio.io/connectedAt":"yesterday"`),
	}
	a := newAPI(t, nil)
	for name, text := range objects {
		a.put(entries+name, []byte(strings.Replace(text, "NAME", name, 1)))
	}
	r := a.controller("leader")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.DeleteAbandoned(ctx) }()
	a.eventually("two deletions", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.results[Deleted] == 2
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	var left []string
	for at := range a.objects {
		left = append(left, path.Base(at))
	}
	slices.Sort(left)
	if want := []string{"connected", "just-gone", "of-a-user", "unreadable"}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
}
