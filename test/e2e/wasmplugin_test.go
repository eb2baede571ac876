package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// withoutModule is a WasmPlugin whose module no proxy has.
const withoutModule = `
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: missing, namespace: sample}
spec: {url: file:///does/not/exist.wasm, failStrategy: %s}
`

// TestMissingModule: an Envoy that cannot load the module of a plugin keeps its listeners and
// all other extensions. Requests pass or are refused as the plugin asks, also after a start.
func TestMissingModule(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	t.Cleanup(app.Close)
	client := dial.HTTPClient(deadline, nil)
	client.Transport.(*http.Transport).DisableKeepAlives = true
	responds := func(t *testing.T, status int, greeting string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the status is %d, the greeting %q", status, greeting), func() error {
			resp, err := client.Get("http://127.3.0.1:5000/")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if got := resp.Header.Get("x-greeting"); resp.StatusCode != status || got != greeting {
				return fmt.Errorf("%s, %q", resp.Status, got)
			}
			return listenersAre(t, "listener_manager.total_listeners_warming: 0")
		})
	}
	for _, variant := range []string{"delta", "sotw"} {
		t.Run(variant, func(t *testing.T) {
			dir := harness.ShortDir(t)
			mesh := helloworldMesh(t, strings.TrimPrefix(app.URL, "http://"))
			objects := func(greeting, strategy string) {
				text := filterHead + filterDiscovery + fmt.Sprintf(filterExtension, greeting)
				if strategy != "" {
					text += fmt.Sprintf(withoutModule, strategy)
				}
				replace(t, filepath.Join(mesh, "cluster1", "filters.yaml"), text)
			}
			objects("hello", "")
			_, secure := controlPlane(t, dir, mesh)
			p := proxy{"helloworld-v1", "sidecar", "sample", "helloworld", "127.3.0.1", map[string]string{"app": "helloworld"}}
			start := func() (stop func()) {
				if err := os.RemoveAll(filepath.Join(dir, p.name)); err != nil {
					t.Fatal(err)
				}
				return p.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE", fmt.Sprintf("ISTIO_DELTA_XDS=%t", variant == "delta"))
			}
			stop := start()
			defer func() { stop() }()
			responds(t, http.StatusOK, "hello")
			objects("hello", "FAIL_OPEN")
			responds(t, http.StatusOK, "hello")
			objects("good day", "FAIL_OPEN")
			responds(t, http.StatusOK, "good day")
			objects("good day", "FAIL_CLOSE")
			responds(t, http.StatusForbidden, "good day")
			stop()
			stop = start()
			responds(t, http.StatusForbidden, "good day")
			objects("good bye", "FAIL_OPEN")
			responds(t, http.StatusOK, "good bye")
			stop()
			stop = start()
			responds(t, http.StatusOK, "good bye")
			if got := adminGet(t, admin, "/stats?filter=lds.update_rejected"); !strings.Contains(got, "lds.update_rejected: 0\n") {
				t.Errorf("Envoy refused listeners: %s", got)
			}
		})
	}
}
