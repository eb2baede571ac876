package replicas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/kube"
)

// TestMain ignores a goroutine of spdystream that waits a second to report the error
// of a second Close.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

// statusPages serves the status pages of a replica of that name.
func statusPages(t *testing.T, name string) (address string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+IdentityPath, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Host, "localhost:") && !strings.HasPrefix(r.Host, "127.0.0.1:") {
			http.Error(w, "host "+r.Host, http.StatusForbidden)
			return
		}
		// Addresses get the token that was given for them, pods a token of the API server.
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token != "for-"+r.Host && (!strings.HasPrefix(r.Host, "localhost:") || strings.Count(token, ".") != 2) {
			http.Error(w, "token "+token, http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(Identity{Replica: name, Cluster: "east"})
	})
	mux.HandleFunc("GET /debug/thing", func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_ = json.NewEncoder(w).Encode(strings.Repeat("x", 1<<20))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), asked
}

// announce keeps the Lease of a replica until stop is called. It returns when the
// Lease exists, stop when it is gone.
func announce(t *testing.T, c *kube.Cluster, namespace string, a Announcement, now func() time.Time) (stop func()) {
	t.Helper()
	keeper := NewAnnouncer(AnnouncerConfig{
		Access: c.Config(), Namespace: namespace, Say: func() Announcement { return a },
		Every: 50 * time.Millisecond, Now: now, Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- keeper.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	waitFor(t, func() error {
		if names := leaseNames(t, c, namespace); !strings.Contains(names, leaseName(a.Replica)) {
			return fmt.Errorf("Leases %s, problem %q", names, keeper.Problem())
		}
		return nil
	})
	return stop
}

func leaseNames(t *testing.T, c *kube.Cluster, namespace string) string {
	t.Helper()
	return c.Kubectl(t, "", "get", "leases", "-n", namespace, "-o", "name")
}

func waitFor(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.After(time.Minute)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}

func find(t *testing.T, c *kube.Cluster, namespace string) ([]*Replica, error) {
	t.Helper()
	found, err := Find(t.Context(), Options{
		Access: c.Config(), Namespace: namespace, Timeout: time.Minute, Now: time.Now,
		Tokens: Tokens{At: func(address string) (string, error) { return "for-" + address, nil }},
	})
	t.Cleanup(func() {
		for _, r := range found {
			r.Close()
		}
	})
	return found, err
}

// TestFindByLease: Find reaches the replicas whose Leases are not stale, and no others.
func TestFindByLease(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Shared(t, "east")
	namespace := c.Namespace(t, "leases")
	if _, err := find(t, c, namespace); !errors.Is(err, ErrNone) || !strings.Contains(err.Error(), namespace) {
		t.Errorf("nobody there: %v", err)
	}
	here, asked := statusPages(t, "Here_1")
	other, _ := statusPages(t, "somebody")
	clusters := []ClusterDigest{{"east", "synced", ""}, {"west", "lost", "abc"}}
	stop := announce(t, c, namespace, Announcement{Replica: "Here_1", Cluster: "east", Addresses: []string{here}, Clusters: clusters}, time.Now)
	announce(t, c, namespace, Announcement{Replica: "taken_2", Addresses: []string{other}, Clusters: clusters}, time.Now)
	announce(t, c, namespace, Announcement{Replica: "stale_3", Addresses: []string{here}}, func() time.Time { return time.Now().Add(-2 * lifetime) })

	found, err := find(t, c, namespace)
	if err != nil || len(found) != 2 {
		t.Fatalf("found %d, %v", len(found), err)
	}
	r := found[0]
	want := &Announcement{Replica: "Here_1", Cluster: "east", Addresses: []string{here}, Clusters: clusters}
	if diff := cmp.Diff(want, r.Announced, cmpopts.IgnoreFields(Announcement{}, "Renewed")); diff != "" || r.Err != nil || r.Via != here {
		t.Errorf("%+v\n%s", r, diff)
	}
	var page string
	if err := r.Get(t.Context(), "/debug/thing", nil, &page); err != nil || len(page) != 1<<20 || asked.Load() != 1 {
		t.Errorf("%d bytes, %v", len(page), err)
	}
	if err := r.Get(t.Context(), "/debug/nothing", nil, &page); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such page: %v", err)
	}
	r = found[1]
	if r.Name != "taken_2" || r.Err == nil || !strings.Contains(r.Err.Error(), `another replica, "somebody", answers there`) || !errors.Is(r.Err, ErrOtherCluster) || len(r.Announced.Clusters) != 2 {
		t.Errorf("%+v", r)
	}
	if err := r.Get(t.Context(), "/debug/thing", nil, &page); err == nil || err.Error() != r.Err.Error() {
		t.Errorf("what cannot be reached was asked: %v", err)
	}
	if stop(); strings.Contains(leaseNames(t, c, namespace), leaseName("Here_1")) {
		t.Error("the Lease of a replica that stopped is still there")
	}
}

// TestSweep: a replica takes over the Lease of its name and deletes only the Leases of
// replicas that are long gone.
func TestSweep(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Shared(t, "east")
	namespace := c.Namespace(t, "sweep")
	apply := func(name, label string, renewed time.Time) {
		c.Apply(t, fmt.Sprintf(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: %s, namespace: %s, labels: {%q: "true"}},
spec: {holderIdentity: %s, renewTime: %q}}`, name, namespace, label, name, renewed.UTC().Format("2006-01-02T15:04:05.000000Z")))
	}
	apply("meshctl-replica-gone", leaseLabel, time.Now().Add(-2*time.Hour))
	apply("meshctl-replica-young", leaseLabel, time.Now().Add(-time.Minute))
	apply("of-others", "example.com/lease", time.Now().Add(-2*time.Hour))
	apply("meshctl-replica-me", leaseLabel, time.Now().Add(-2*time.Hour))
	announce(t, c, namespace, Announcement{Replica: "me"}, time.Now)
	waitFor(t, func() error {
		names := strings.Fields(leaseNames(t, c, namespace))
		if diff := cmp.Diff([]string{
			"lease.coordination.k8s.io/meshctl-replica-me", "lease.coordination.k8s.io/meshctl-replica-young", "lease.coordination.k8s.io/of-others",
		}, names); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// TestFindByPortForward: Find reaches replicas in pods through the API server, by their
// Lease or, without Leases, by their labels.
func TestFindByPortForward(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Shared(t, "east")
	kubelet := c.Kubelet(t)
	namespace := c.Namespace(t, "forward")
	first, asked := statusPages(t, "istiod-1_x")
	second, _ := statusPages(t, "meshctl-2_x")
	port := func(address string) string { return address[strings.LastIndex(address, ":")+1:] }
	pod := func(name, label, phase, port string) {
		c.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s, labels: {%s}},
spec: {nodeName: %s, automountServiceAccountToken: false, containers: [{name: discovery, image: none, ports: [{name: http-status, containerPort: %s}]}]},
status: {phase: %s, podIP: 10.9.9.9, podIPs: [{ip: 10.9.9.9}]}}`, name, namespace, label, kubelet.Node, port, phase))
	}
	c.Apply(t, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: "+namespace+"}}")
	pod("istiod-1", "app: istiod", "Running", port(first))
	pod("meshctl-2", "app.kubernetes.io/name: meshctl, app: istiod", "Running", port(second))
	pod("istiod-3", "app: istiod", "Pending", "8080")
	pod("istiod-4", "app: istiod", "Running", "1") // no listener
	pod("istiod-5", "app: istiod", "Running", port(first))
	c.Kubectl(t, "", "annotate", "pod", "istiod-5", "-n", namespace, "meshctl.io/config-cluster=west")
	pod("other", "app: other", "Running", port(first))

	found, err := find(t, c, namespace)
	if err != nil || len(found) != 4 {
		t.Fatalf("found %d, %v", len(found), err)
	}
	for i, name := range []string{"istiod-1", "istiod-4", "istiod-5", "meshctl-2"} {
		r := found[i]
		if r.Name != name || (r.Err != nil) != (name == "istiod-4") && !errors.Is(r.Err, ErrOtherCluster) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if err := found[1].Err; err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a port where nobody listens: %v", err)
	}
	if err := found[2].Err; !errors.Is(err, ErrOtherCluster) || !strings.Contains(err.Error(), "it reads west, which is another cluster") {
		t.Errorf("a control plane of another cluster: %v", err)
	}
	before := kubelet.Forwards()
	for range 3 {
		var page string
		if err := found[0].Get(t.Context(), "/debug/thing", nil, &page); err != nil || len(page) != 1<<20 {
			t.Errorf("%d bytes, %v", len(page), err)
		}
	}
	if asked.Load() != 3 || kubelet.Forwards() != before {
		t.Errorf("%d answers, %d connections more", asked.Load(), kubelet.Forwards()-before)
	}

	// The Lease has an address without a listener, and the pod.
	announce(t, c, namespace, Announcement{
		Replica: "istiod-1_x", Pod: namespace + "/istiod-1", Addresses: []string{"127.0.0.1:1"},
	}, time.Now)
	if found, err = find(t, c, namespace); err != nil || len(found) != 1 || found[0].Err == nil {
		t.Fatalf("a pod whose port is wrong: found %d, %v", len(found), err)
	}
	if text := found[0].Err.Error(); !strings.Contains(text, "127.0.0.1:1: ") || !strings.Contains(text, "port-forward to pod "+namespace+"/istiod-1: ") {
		t.Errorf("not both ways are named: %s", text)
	}
}

// TestUnreadAnswers: an incomplete response is not reported as a wrong page.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	const late = "no whole answer in time: context deadline exceeded"
	for name, tc := range map[string]struct {
		begin   string
		stalls  bool // after that; else the connection ends
		timeout time.Duration
		want    string // how the error ends
	}{
		"late":    {"", true, 200 * time.Millisecond, late},
		"stalled": {`{"a": `, true, 200 * time.Millisecond, late},
		"cut":     {`{"a": `, false, time.Minute, "read the answer: unexpected EOF"},
		"a page":  {`<html>`, true, time.Minute, "answered what is no such page: invalid character '<' looking for beginning of value"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if tc.begin != "" {
					_, _ = io.WriteString(w, tc.begin)
					_ = http.NewResponseController(w).Flush()
				}
				if tc.stalls {
					<-release
				}
				panic(http.ErrAbortHandler)
			}))
			defer server.Close()
			defer close(release)
			r, err := At(server.URL, Tokens{At: func(string) (string, error) { return "", nil }}, tc.timeout)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var v any
			err = r.Get(t.Context(), "/debug/thing", nil, &v)
			if err == nil || !strings.HasSuffix(err.Error(), tc.want) || strings.Contains(err.Error(), "no such page") != (name == "a page") {
				t.Errorf("error %v, want %s", err, tc.want)
			}
		})
	}
}

// TestLeaseName: names of Leases are valid, and keep the end of long names.
func TestLeaseName(t *testing.T) {
	t.Parallel()
	for replica, want := range map[string]string{
		"meshctl-7d-x_AB2":       "meshctl-replica-meshctl-7d-x-ab2",
		"host.example.com_x":     "meshctl-replica-host-example-com-x",
		strings.Repeat("ü", 3):   "meshctl-replica-",
		strings.Repeat("a", 300): "meshctl-replica-" + strings.Repeat("a", 237),
	} {
		if got := leaseName(replica); got != want {
			t.Errorf("%q: %q, want %q", replica, got, want)
		}
	}
}

// TestDigestIsBounded: a Lease is bounded, and read as it was written.
func TestDigestIsBounded(t *testing.T) {
	t.Parallel()
	a := Announcement{Replica: "r", Cluster: "c", Pod: "ns/p", Addresses: []string{"127.0.0.1:8080"}}
	for i := range 3 * maxDigest {
		a.Clusters = append(a.Clusters, ClusterDigest{mesh.ClusterID("cluster-" + strings.Repeat("x", 50)), "synced", fmt.Sprint(i)})
	}
	l, err := a.lease("ns")
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for k, v := range l.Annotations {
		size += len(k) + len(v)
	}
	if size > 200<<10 {
		t.Errorf("annotations of %d bytes", size)
	}
	got, err := announcementOf(l)
	if err != nil {
		t.Fatal(err)
	}
	a.Clusters, a.Left = a.Clusters[:maxDigest], 2*maxDigest
	if diff := cmp.Diff(&a, got, cmpopts.IgnoreFields(Announcement{}, "Renewed")); diff != "" {
		t.Error(diff)
	}
}
