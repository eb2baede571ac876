package servecmd

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
)

// TestOwnAPIDoesNotCompress: requests to the API server of the own cluster accept no
// compression.
func TestOwnAPIDoesNotCompress(t *testing.T) {
	t.Parallel()
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accepted := r.Header.Get("Accept-Encoding"); accepted != "" {
			t.Errorf("it may be compressed: %s", accepted)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer api.Close()
	file := filepath.Join(t.TempDir(), "config")
	text := `{current-context: own, contexts: [{name: own, context: {cluster: own}}], clusters: [{name: own, cluster: {insecure-skip-tls-verify: true, server: "` + api.URL + `"}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := serveOptions{kubeconfig: file}
	access, err := o.kubeAccess(&cli.Env{LookupEnv: clitest.HomeOnly(t.TempDir())})
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(access.Config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api.URL+"/api/v1/services", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
}
