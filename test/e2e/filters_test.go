package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

const (
	filterHead = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: greeting, namespace: sample}
spec:
  workloadSelector: {labels: {app: helloworld}}
  configPatches:`
	filterDiscovery = `
  - applyTo: HTTP_FILTER
    match:
      context: SIDECAR_INBOUND
      listener:
        portNumber: 5000
        filterChain:
          filter:
            name: envoy.filters.network.http_connection_manager
            subFilter: {name: envoy.filters.http.router}
    patch:
      operation: INSERT_BEFORE
      value:
        name: greeting
        config_discovery:
          config_source: {ads: {}}
          type_urls: [type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua]`
	filterExtension = `
  - applyTo: EXTENSION_CONFIG
    patch:
      operation: ADD
      value:
        name: greeting
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code:
            inline_string: |
              function envoy_on_response(handle)
                handle:headers():add("x-greeting", "%s")
              end`
)

// TestExtensionsByDiscovery changes an HTTP filter that an EnvoyFilter inserts
// while a real Envoy serves requests through it: it comes, it changes without
// its listener, and it goes, and no request fails.
func TestExtensionsByDiscovery(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	t.Cleanup(app.Close)
	for _, variant := range []string{"delta", "sotw"} {
		t.Run(variant, func(t *testing.T) {
			dir := harness.ShortDir(t)
			mesh := helloworldMesh(t, strings.TrimPrefix(app.URL, "http://"))
			_, secure := controlPlane(t, dir, mesh)
			p := proxy{"helloworld-v1", "sidecar", "sample", "helloworld", "127.3.0.1", map[string]string{"app": "helloworld"}}
			stop := p.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE", fmt.Sprintf("ISTIO_DELTA_XDS=%t", variant == "delta"))
			defer stop()
			// A connection each, so that a new listener is seen, and one that
			// stays, on which a draining listener answers.
			fresh, stays := dial.HTTPClient(deadline, nil), dial.HTTPClient(deadline, nil)
			fresh.Transport.(*http.Transport).DisableKeepAlives = true
			t.Cleanup(stays.CloseIdleConnections)
			greets := func(want string) {
				t.Helper()
				eventually(t, fmt.Sprintf("the greeting is %q", want), func() error {
					greeting(t, stays)
					if got := greeting(t, fresh); got != want {
						return fmt.Errorf("it is %q", got)
					}
					return nil
				})
			}
			filters := func(text string) { replace(t, filepath.Join(mesh, "cluster1", "filters.yaml"), text) }
			greets("")

			filters(filterHead + filterDiscovery)
			eventually(t, "the listener waits for the filter", func() error {
				return listenersAre(t, "listener_manager.total_listeners_warming: 1")
			})
			greets("")
			filters(filterHead + filterDiscovery + fmt.Sprintf(filterExtension, "hello"))
			greets("hello")
			out, err := exec.Command(meshctl, "pc", "ecds", "--admin", admin).CombinedOutput()
			if want := "greeting      envoy.extensions.filters.http.lua.v3.Lua"; err != nil || !strings.Contains(string(out), want) {
				t.Errorf("meshctl pc ecds: %v, want %s in\n%s", err, want, out)
			}
			out, err = exec.Command(meshctl, "pc", "all", "--admin", admin).Output()
			for _, want := range []string{"\nEnvoy Version: ", "\ncluster/inbound|5000||", "\nlistener/", "\nroute/", "\nsecret/ROOTCA", "\nendpoint/etc/istio/proxy/XDS "} {
				if err != nil || !strings.Contains("\n"+string(out), want) {
					t.Errorf("meshctl pc all: %v, want %q in\n%s", err, want, out)
				}
			}
			out, err = exec.Command(meshctl, "pc", "bootstrap", "--admin", admin).CombinedOutput()
			if want := `"id": "sidecar~`; err != nil || !strings.Contains(string(out), want) {
				t.Errorf("meshctl pc bootstrap: %v, want %s in\n%s", err, want, out)
			}

			modified := adminGet(t, admin, "/stats?filter=listener_manager.listener_(modified|added|removed)")
			filters(filterHead + filterDiscovery + fmt.Sprintf(filterExtension, "good day"))
			greets("good day")
			if now := adminGet(t, admin, "/stats?filter=listener_manager.listener_(modified|added|removed)"); now != modified {
				t.Errorf("a listener changed with the filter: before\n%safter\n%s", modified, now)
			}

			if err := os.Remove(filepath.Join(mesh, "cluster1", "filters.yaml")); err != nil {
				t.Fatal(err)
			}
			greets("")
			for line := range strings.SplitSeq(strings.TrimSpace(adminGet(t, admin, "/stats?filter=update_rejected|init_fetch_timeout|config_fail|config_conflict")), "\n") {
				if !strings.HasSuffix(line, ": 0") {
					t.Errorf("Envoy counts %s", line)
				}
			}
		})
	}
}

// listenersAre looks for a line in the statistics of listeners.
func listenersAre(t *testing.T, line string) error {
	t.Helper()
	if stats := adminGet(t, admin, "/stats?filter=listener_manager"); !strings.Contains(stats, line+"\n") {
		return fmt.Errorf("no %s in\n%s", line, stats)
	}
	return nil
}

// greeting is what the filter adds to the application's answer.
func greeting(t *testing.T, client *http.Client) string {
	t.Helper()
	resp, err := client.Get("http://127.3.0.1:5000/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || string(body) != "hello" {
		t.Fatalf("the application's answer is %s, %q, %v", resp.Status, body, err)
	}
	return resp.Header.Get("x-greeting")
}

// helloworldMesh is the directories of a mesh in which helloworld is called at
// 127.3.0.1:5000, in front of the application.
func helloworldMesh(t *testing.T, application string) string {
	t.Helper()
	mesh := t.TempDir()
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.Mkdir(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
		replace(t, filepath.Join(mesh, cluster, "services.yaml"), `
apiVersion: v1
kind: Service
metadata: {name: helloworld, namespace: sample}
spec:
  selector: {app: helloworld}
  clusterIP: 10.97.0.1
  ports: [{name: http, port: 5000}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: helloworld, namespace: sample}
spec:
  workloadSelector: {labels: {app: helloworld}}
  ingress:
  - {bind: 127.3.0.1, port: {number: 5000, protocol: HTTP, name: http}, defaultEndpoint: '`+application+`'}
`)
	}
	return mesh
}

// replace writes a file whole.
func replace(t *testing.T, file, text string) {
	t.Helper()
	temp := filepath.Join(t.TempDir(), "new")
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temp, file); err != nil {
		t.Fatal(err)
	}
}
