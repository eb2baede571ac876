package identity

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
)

// patience bounds the wait for an expected event.
const patience = 2 * time.Minute

// accessTest is a SecretAccess with an API server and a clock that the test controls.
type accessTest struct {
	t *testing.T
	*SecretAccess
	api *httptest.Server

	mu    sync.Mutex
	now   time.Time
	allow bool
	fail  bool
	asked []authorizationv1.SubjectAccessReviewSpec
	told  chan []string
}

func startAccess(t *testing.T) *accessTest {
	t.Helper()
	b := &accessTest{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), told: make(chan []string, 1000)}
	b.api = httptest.NewTLSServer(b)
	t.Cleanup(b.api.Close)
	b.SecretAccess = NewSecretAccess(SecretAccessConfig{
		Changed: func(pods []string) { b.told <- pods }, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.now
		},
	})
	b.access("c1")
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

func (b *accessTest) access(id mesh.ClusterID) {
	b.t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b.api.Certificate().Raw})
	if err := b.SetCluster(id, &rest.Config{Host: b.api.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *accessTest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review authorizationv1.SubjectAccessReview
	var object runtime.Unknown // in protobuf, after four bytes
	body, err := io.ReadAll(r.Body)
	if err == nil && len(body) > 4 {
		err = object.Unmarshal(body[4:])
	}
	if err == nil {
		err = review.Unmarshal(object.Raw)
	}
	if err != nil {
		b.t.Error(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, review.Spec)
	if b.fail {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: b.allow, Reason: "because"}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(review); err != nil {
		b.t.Error(err)
	}
}

// set changes the answers of the API server, and advances the clock.
func (b *accessTest) set(allow, fail bool, later time.Duration) {
	b.mu.Lock()
	b.allow, b.fail, b.now = allow, fail, b.now.Add(later)
	b.mu.Unlock()
	b.signal()
}

func (b *accessTest) questions() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.asked)
}

func gatewayCaller(cluster mesh.ClusterID, namespace string) mesh.Caller {
	return mesh.Caller{Cluster: cluster, Identity: mesh.Identity{TrustDomain: "td", Namespace: namespace, ServiceAccount: "gw"}}
}

// until calls MayRead after each notification, as the hub does, until the error
// contains want; empty means no error.
func (b *accessTest) until(want string) {
	b.t.Helper()
	deadline := time.After(patience)
	for {
		err := b.MayRead(gatewayCaller("c1", "ns"), "c1/ns/gw-1")
		if err == nil && want == "" || err != nil && want != "" && strings.Contains(err.Error(), want) {
			return
		}
		select {
		case pods := <-b.told:
			if !slices.Equal(pods, []string{"c1/ns/gw-1"}) {
				b.t.Fatalf("notified pods are %v", pods)
			}
		case <-deadline:
			b.t.Fatalf("the answer is %v, want %q", err, want)
		}
	}
}

// TestRightIsAskedFor: a caller may read keys only after the API server of its
// cluster has allowed it.
func TestRightIsAskedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		allow, fail bool
		want        string
	}{
		"allowed": {true, false, ""},
		"denied":  {false, false, `gw/ns is not authorized to read secrets: "because"`},
		"fault":   {true, true, "the API server of cluster c1 cannot be asked whether gw/ns may read secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			b := startAccess(t)
			b.set(tc.allow, tc.fail, 0)
			if err := b.MayRead(gatewayCaller("c1", "ns"), "c1/ns/gw-1"); !errors.Is(err, units.ErrUndecided) {
				t.Fatalf("the first answer is %v", err)
			}
			b.until(tc.want)
			b.mu.Lock()
			defer b.mu.Unlock()
			spec := b.asked[0]
			if a := spec.ResourceAttributes; spec.User != "system:serviceaccount:ns:gw" || !slices.Contains(spec.Groups, "system:serviceaccounts:ns") ||
				a.Namespace != "ns" || a.Verb != "list" || a.Resource != "secrets" || a.Group != "" {
				t.Errorf("asked %+v", spec)
			}
		})
	}
	t.Run("nobody", func(t *testing.T) {
		b := startAccess(t)
		b.set(true, false, 0)
		for want, c := range map[string]mesh.Caller{
			"it did not prove its cluster and service account":             {Cluster: "c1"},
			"no API server of cluster c2 can be asked for its permissions": gatewayCaller("c2", "ns"),
		} {
			if err := b.MayRead(c, "p"); err == nil || err.Error() != want {
				t.Errorf("the answer is %v, want %s", err, want)
			}
		}
		if n := b.questions(); n > 0 {
			t.Errorf("%d questions", n)
		}
	})
}

// TestManyAccounts: many accounts of one namespace, or of another cluster, leave room for others.
func TestManyAccounts(t *testing.T) {
	r := NewSecretAccess(SecretAccessConfig{Changed: func([]string) {}, Now: time.Now})
	r.clusters["c1"], r.clusters["c2"] = &kube.Client{}, &kube.Client{}
	ask := func(cluster mesh.ClusterID, namespace, account string) error {
		who := gatewayCaller(cluster, namespace)
		who.Identity.ServiceAccount = account
		return r.MayRead(who, "p")
	}
	for n := range 2 * maxAccounts {
		_ = ask("c1", "tenant", fmt.Sprint("a", n))
		_ = ask("c2", fmt.Sprint("n", n/100), fmt.Sprint("a", n))
	}
	for _, namespace := range []string{"n1", "istio-ingress"} {
		if err := ask("c1", namespace, "gw"); !errors.Is(err, units.ErrUndecided) {
			t.Errorf("a gateway in %s: %v", namespace, err)
		}
	}
	for want, got := range map[string]error{
		"more than 1000 service accounts of namespace tenant ask for secrets": ask("c1", "tenant", "b"),
		"more than 10000 service accounts of cluster c2 ask for secrets":      ask("c2", "n999", "b"),
	} {
		if got == nil || got.Error() != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
}

// TestPermissionRevoked: a revoked permission ends within 30 seconds, even if the
// API server no longer answers. A granted permission counts within a minute. No
// requests are made in between.
func TestPermissionRevoked(t *testing.T) {
	b := startAccess(t)
	b.set(true, false, 0)
	b.until("")
	b.set(true, false, renewAfter-time.Second)
	b.until("")
	if n := b.questions(); n != 1 {
		t.Errorf("%d questions in %s, want 1", n, renewAfter)
	}
	b.set(false, false, 2*time.Second)
	b.until("is not authorized")
	b.set(true, false, deniedFor-time.Second)
	b.until("is not authorized")
	b.set(true, false, 2*time.Second)
	b.until("")
	b.set(true, true, renewAfter+time.Second) // the old answer still counts
	b.until("")
	b.set(true, true, allowedFor-renewAfter)
	b.until("cannot be asked")
	b.set(true, false, failedFor)
	b.until("")
}

// TestClusterGoes: the removal of a cluster ends its permissions, and a new cluster of
// the same name is queried again.
func TestClusterGoes(t *testing.T) {
	b := startAccess(t)
	b.set(true, false, 0)
	b.until("")
	b.RemoveCluster("c1")
	b.until("no API server of cluster c1")
	b.set(false, false, 0)
	b.access("c1")
	b.until("is not authorized")
}

// TestForgets: accounts without callers are forgotten.
func TestForgets(t *testing.T) {
	b := startAccess(t)
	b.set(true, false, 0)
	b.until("")
	remembered := func() int {
		b.SecretAccess.mu.Lock()
		defer b.SecretAccess.mu.Unlock()
		return len(b.accounts)
	}
	for deadline := time.Now().Add(patience); remembered() > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the account is remembered")
		}
		b.set(true, false, time.Hour)
		select {
		case <-b.told: // the pods of the last query are not notified again
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestRefusesAccess: unusable access to a cluster is an error.
func TestRefusesAccess(t *testing.T) {
	r := NewSecretAccess(SecretAccessConfig{Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err := r.SetCluster("c1", &rest.Config{Host: "https://a", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("x")}}); err == nil || !strings.HasPrefix(err.Error(), "cluster c1: ") {
		t.Errorf("error %v", err)
	}
}

// TestSlowAPIServer: the accounts of a cluster whose API server does not answer do not delay those
// of other clusters.
func TestSlowAPIServer(t *testing.T) {
	access := NewSecretAccess(SecretAccessConfig{Changed: func([]string) {}, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	for _, cluster := range []mesh.ClusterID{"slow", "c1"} {
		if err := access.SetCluster(cluster, &rest.Config{Host: "https://127.0.0.1"}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { access.RemoveCluster(cluster) })
	}
	for i := range 1000 {
		if err := access.MayRead(gatewayCaller("slow", fmt.Sprint("ns", i)), "slow/ns/gw"); !errors.Is(err, units.ErrUndecided) {
			t.Fatal(err)
		}
	}
	if due := access.takeDue(); len(due) != maxAsking {
		t.Errorf("one API server gets %d queries at once, want %d", len(due), maxAsking)
	}
	if err := access.MayRead(gatewayCaller("c1", "ns"), "c1/ns/gw"); !errors.Is(err, units.ErrUndecided) {
		t.Fatal(err)
	}
	if due := access.takeDue(); len(due) != 1 {
		t.Errorf("%d queries are sent beside those of the slow API server, want 1 to c1", len(due))
	}
}
