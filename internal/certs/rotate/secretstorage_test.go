package rotate

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/kube"
)

func shared(t *testing.T) *kube.Cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	return kube.Shared(t, "secrets")
}

// newMesh makes two clusters with a common root, each a namespace of one API.
func newMesh(t *testing.T, api *kube.Cluster) []*store.ClusterSecrets {
	t.Helper()
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: 1000 * time.Hour}
	root, err := certs.NewRoot(spec, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var out []*store.ClusterSecrets
	for _, id := range []mesh.ClusterID{"cluster1", "cluster2"} {
		c, err := store.Connect(id, string(id), api.Namespace(t, "mesh"), api.Config())
		if err != nil {
			t.Fatal(err)
		}
		a, err := root.NewIntermediate(id, spec, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		set, err := store.SecretFiles(a, nil, store.LayoutIstio)
		if err != nil {
			t.Fatal(err)
		}
		put, err := c.Plan(t.Context(), store.CACerts, set)
		if err != nil {
			t.Fatal(err)
		}
		if err := put.Write(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// rotating returns a rotation in the clusters at a time.
func rotating(t *testing.T, clusters []*store.ClusterSecrets, now *time.Time) (*Dir, error) {
	t.Helper()
	clock := func() time.Time { return *now }
	storage, err := OpenSecretStorage(t.Context(), clusters)
	return &Dir{Storage: storage, Now: clock, Rand: rand.Reader, Gates: []Gate{Waited(clock)}}, err
}

func take(ctx context.Context, d *Dir, step string) error {
	var err error
	if step == "start" {
		_, err = d.Start(ctx, StartOptions{LeafTTL: time.Hour})
	} else {
		_, err = d.Take(ctx, Action(step))
	}
	return err
}

var errLost = errors.New("the connection was lost")

// losing loses the connection at a write, before the API server receives it or before
// the response is read.
type losing struct {
	http.RoundTripper
	writes, at int
	after      bool
}

func (l *losing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		return l.RoundTripper.RoundTrip(req)
	}
	if l.writes++; l.writes != l.at {
		return l.RoundTripper.RoundTrip(req)
	}
	if l.after {
		resp, err := l.RoundTripper.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		_ = resp.Body.Close()
	}
	return nil, errLost
}

// lose returns the clusters with a connection that is lost at a write.
func lose(t *testing.T, api *kube.Cluster, clusters []*store.ClusterSecrets, l *losing) []*store.ClusterSecrets {
	t.Helper()
	var out []*store.ClusterSecrets
	for _, c := range clusters {
		config := api.Config()
		config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				l.RoundTripper = rt
				return l.RoundTrip(req)
			})
		})
		other, err := store.Connect(c.ID, c.Context, c.Namespace, rest.CopyConfig(config))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, other)
	}
	return out
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestRotationInterruptedAnywhere: a rotation that loses its connection at any write
// continues with the same command and has the same result.
func TestRotationInterruptedAnywhere(t *testing.T) {
	t.Parallel()
	api := shared(t)
	for _, after := range []bool{false, true} {
		last := 1
		for at := 1; at <= last; at++ {
			clusters, now := newMesh(t, api), time.Now()
			l := &losing{at: at, after: after}
			lossy, lost := lose(t, api, clusters, l), 0
			for _, step := range []string{"start", "next", "finish"} {
				for {
					d, err := rotating(t, lossy, &now)
					if err != nil {
						t.Fatalf("write %d, %s: %v", at, step, err)
					}
					if err = take(t.Context(), d, step); err == nil {
						break
					}
					if _, refused := errors.AsType[*Refusal](err); refused && after && lost > 0 {
						break // it was taken, only the answer was lost
					}
					if lost++; lost > 1 || !errors.Is(err, errLost) {
						t.Fatalf("write %d, %s: %v", at, step, err)
					}
				}
				now = now.Add(2 * time.Hour)
			}
			last = max(last, l.writes)
			checkRotated(t, clusters, now, at)
		}
		if last < 12 {
			t.Errorf("there were %d writes", last)
		}
	}
}

// checkRotated checks that both clusters have one new root, and that its key is
// archived.
func checkRotated(t *testing.T, clusters []*store.ClusterSecrets, now time.Time, at int) {
	t.Helper()
	var roots []string
	for _, c := range clusters {
		secret, err := c.Get(t.Context(), store.CACerts)
		if err != nil || secret == nil {
			t.Fatalf("write %d: %v", at, err)
		}
		a, _, err := store.FromSecret("", "", secret.Data).Authority(verify.Options{Now: now})
		if err != nil || len(a.Roots) != 1 {
			t.Fatalf("write %d: %s: %v", at, c.Context, err)
		}
		roots = append(roots, certs.Fingerprint(a.Roots[0]))
	}
	names, err := clusters[0].Names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var key []byte
	for _, name := range names {
		if !strings.HasPrefix(name, "meshctl-root-finished-") {
			continue
		}
		finished, err := clusters[0].Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		key = finished.Data[store.RootKeyFile]
	}
	if roots[0] != roots[1] || len(key) == 0 || slices.Contains(names, stateSecret) {
		t.Errorf("write %d: roots %v, Secrets %v, key of %d bytes", at, roots, names, len(key))
	}
}

// TestRotationConflict: of two concurrent steps, one is refused and changes nothing.
func TestRotationConflict(t *testing.T) {
	t.Parallel()
	clusters, now := newMesh(t, shared(t)), time.Now()
	for _, step := range []string{"start", "next", "finish"} {
		var both []*Dir
		for range 2 {
			d, err := rotating(t, clusters, &now)
			if err != nil {
				t.Fatal(err)
			}
			both = append(both, d)
		}
		if err := take(t.Context(), both[0], step); err != nil {
			t.Fatal(err)
		}
		if err := take(t.Context(), both[1], step); err == nil || !strings.Contains(err.Error(), "it was changed at the same time") {
			t.Errorf("%s a second time: %v", step, err)
		}
		now = now.Add(2 * time.Hour)
	}
	checkRotated(t, clusters, now, 0)
}

// TestRotationKeepsTheRest: a rotation keeps other data of a Secret, and its layout.
func TestRotationKeepsTheRest(t *testing.T) {
	t.Parallel()
	clusters, now := newMesh(t, shared(t)), time.Now()
	secret, err := clusters[1].Get(t.Context(), store.CACerts)
	if err != nil {
		t.Fatal(err)
	}
	secret.Labels = map[string]string{"keep": "me"}
	data := maps.Clone(secret.Data)
	data["other"] = []byte("x")
	if secret, err = clusters[1].Write(t.Context(), store.CACerts, secret, data, false); err != nil {
		t.Fatal(err)
	}
	d, err := rotating(t, clusters, &now)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(take(t.Context(), d, "start"), take(t.Context(), d, "abort")); err != nil {
		t.Fatal(err)
	}
	after, err := clusters[1].Get(t.Context(), store.CACerts)
	if err != nil || after.Labels["keep"] != "me" || string(after.Data["other"]) != "x" || after.ResourceVersion == secret.ResourceVersion {
		t.Errorf("after a rotation: %v, labels %v, %d keys", err, after.Labels, len(after.Data))
	}

	a, _, err := store.FromSecret("", "", after.Data).Authority(verify.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	set, err := store.SecretFiles(a, nil, store.LayoutTLS)
	if err != nil {
		t.Fatal(err)
	}
	put, err := clusters[1].Plan(t.Context(), store.CACerts, set)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(put.Refuse(), put.Write(t.Context(), false)); err != nil {
		t.Fatal(err)
	}
	if d, err = rotating(t, clusters, &now); err != nil {
		t.Fatal(err)
	}
	if err := take(t.Context(), d, "start"); err != nil {
		t.Fatal(err)
	}
	after, err = clusters[1].Get(t.Context(), store.CACerts)
	if err != nil {
		t.Fatal(err)
	}
	if roots, err := certs.ParseCerts(after.Data["ca.crt"]); err != nil || len(roots) != 2 || after.Data[store.CertFile] != nil {
		t.Errorf("with the other layout: %d roots, %v, keys %v", len(roots), err, slices.Sorted(maps.Keys(after.Data)))
	}
}
