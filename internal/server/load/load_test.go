package load_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func service(name, port string) string {
	return "---\napiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: shop}\nspec: {clusterIP: 10.0.0.1, ports: [{name: http, port: " + port + "}]}\n"
}

// TestRead: files replace the objects of directories, and a mesh has the objects of all
// clusters.
func TestRead(t *testing.T) {
	t.Parallel()
	east, west := t.TempDir(), t.TempDir()
	for file, text := range map[string]string{
		filepath.Join(east, "a.yaml"): service("reviews", "80"), filepath.Join(east, "b.yaml"): service("broken", "0"),
		filepath.Join(west, "a.yaml"): service("ratings", "80"),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := load.Read(t.Context(), load.Config{Now: time.Now, Clusters: []load.Cluster{
		{ID: "east", Dirs: []string{east}, Files: []load.File{{Name: "new.yaml", Text: []byte(service("reviews", "8080") + service("bad", "0"))}}},
		{ID: "west", Dirs: []string{west}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if svc := m.Snapshot.Services.Get(mesh.ServiceHost("reviews", "shop", mesh.DefaultDomain)); svc == nil || svc.Port(8080) == nil {
		t.Errorf("the service is %v, want the one of the file", svc)
	}
	if n := len(m.Objects[snapshot.KindService]); n != 2 {
		t.Errorf("%d Services, want 2", n)
	}
	var faulty []string
	for _, p := range m.Files {
		faulty = append(faulty, p.Place())
	}
	if got, want := strings.Join(faulty, " "), "new.yaml:10 "+filepath.Join(east, "b.yaml")+":5"; got != want {
		t.Errorf("faults at %s, want %s", got, want)
	}
}

// TestReadFails: the error names what cannot be read.
func TestReadFails(t *testing.T) {
	t.Parallel()
	absent := filepath.Join(t.TempDir(), "absent")
	if _, err := load.Read(t.Context(), load.Config{Now: time.Now, Clusters: []load.Cluster{{ID: "east", Dirs: []string{absent}}}}); err == nil || !strings.Contains(err.Error(), absent) {
		t.Errorf("a missing directory: %v", err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	config := &rest.Config{Host: "https://127.0.0.1:1"}
	_, err := load.Read(ctx, load.Config{Now: time.Now, Clusters: []load.Cluster{{ID: "east", Config: config}}})
	if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "cluster east: ") {
		t.Errorf("no API server: %v", err)
	}
}

// TestForbiddenResourcesAreListed: a request that fails for a short time does not shorten the list of
// what the user may not read.
func TestForbiddenResourcesAreListed(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, reason := http.StatusForbidden, "Forbidden"
		if r.URL.Path == "/api/v1/namespaces" && requests.Add(1) < 4 {
			code, reason = http.StatusInternalServerError, "InternalError"
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	}))
	defer api.Close()
	config := &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	_, err := load.Read(t.Context(), load.Config{Now: time.Now, Clusters: []load.Cluster{{ID: "east", Config: config}}})
	if err == nil || !strings.HasPrefix(err.Error(), "cluster east: may not list namespaces (") {
		t.Errorf("nothing may be read: %v", err)
	}
}
