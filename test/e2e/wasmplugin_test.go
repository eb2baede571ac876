package e2e

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

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

// fetchedModule is a WasmPlugin whose module the agent fetches.
const fetchedModule = `
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: fetched, namespace: sample}
spec: {url: "%s", failStrategy: %s}
`

// headerModule returns a module that adds the header x-wasm with a value to each response.
func headerModule(value string) []byte {
	name := "x-wasm"
	vec := func(items ...[]byte) []byte { return append([]byte{byte(len(items))}, bytes.Join(items, nil)...) }
	text := func(s string) []byte { return append([]byte{byte(len(s))}, s...) }
	section := func(id byte, body []byte) []byte { return append([]byte{id, byte(len(body))}, body...) }
	export := func(name string, kind, index byte) []byte { return append(text(name), kind, index) }
	code := func(body ...byte) []byte { return append([]byte{byte(len(body) + 2), 0}, append(body, 0x0b)...) }
	const i32, number = 0x7f, 0x41
	return slices.Concat(
		[]byte("\x00asm\x01\x00\x00\x00"),
		section(1, vec([]byte{0x60, 5, i32, i32, i32, i32, i32, 1, i32}, []byte{0x60, 0, 0}, []byte{0x60, 3, i32, i32, i32, 1, i32}, []byte{0x60, 1, i32, 1, i32})),
		section(2, vec(slices.Concat(text("env"), text("proxy_add_header_map_value"), []byte{0, 0}))),
		section(3, []byte{3, 1, 2, 3}),
		section(5, []byte{1, 0, 1}),
		section(7, vec(export("memory", 2, 0), export("proxy_abi_version_0_2_0", 0, 1), export("proxy_on_response_headers", 0, 2), export("malloc", 0, 3))),
		section(10, vec(
			code(),
			// proxy_add_header_map_value(2, name, value); the result is "continue".
			code(number, 2, number, 0, number, byte(len(name)), number, 16, number, byte(len(value)), 0x10, 0, 0x1a, number, 0),
			code(number, 32),
		)),
		section(11, vec(append([]byte{0, number, 0, 0x0b}, text(name)...), append([]byte{0, number, 16, 0x0b}, text(value)...))),
	)
}

// TestFetchedModule: Envoy runs the module that its agent fetched. Without one, requests pass or
// are refused as the plugin asks, and the module runs as soon as there is one.
func TestFetchedModule(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	t.Cleanup(app.Close)
	var there atomic.Bool
	modules := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late.wasm" && !there.Load() {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(headerModule(strings.TrimPrefix(r.URL.Path, "/")))
	}))
	t.Cleanup(modules.Close)
	client := dial.HTTPClient(deadline, nil)
	client.Transport.(*http.Transport).DisableKeepAlives = true
	responds := func(t *testing.T, status int, header string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the status is %d, the header %q", status, header), func() error {
			resp, err := client.Get("http://127.3.0.1:5000/")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if got := resp.Header.Get("x-wasm"); resp.StatusCode != status || got != header {
				return fmt.Errorf("%s, %q", resp.Status, got)
			}
			return listenersAre(t, "listener_manager.total_listeners_warming: 0")
		})
	}
	for _, variant := range []string{"delta", "sotw"} {
		t.Run(variant, func(t *testing.T) {
			there.Store(false)
			dir := harness.ShortDir(t)
			mesh := helloworldMesh(t, strings.TrimPrefix(app.URL, "http://"))
			plugin := func(path, strategy string) {
				replace(t, filepath.Join(mesh, "cluster1", "filters.yaml"), fmt.Sprintf(fetchedModule, modules.URL+path, strategy))
			}
			plugin("/first.wasm", "FAIL_CLOSE")
			_, secure := controlPlane(t, dir, mesh)
			p := proxy{"helloworld-v1", "sidecar", "sample", "helloworld", "127.3.0.1", map[string]string{"app": "helloworld"}}
			stop := p.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE", fmt.Sprintf("ISTIO_DELTA_XDS=%t", variant == "delta"),
				"WASM_INSECURE_REGISTRIES="+strings.TrimPrefix(modules.URL, "http://"))
			defer stop()
			responds(t, http.StatusOK, "first.wasm")
			plugin("/second.wasm", "FAIL_CLOSE")
			responds(t, http.StatusOK, "second.wasm")
			plugin("/late.wasm", "FAIL_OPEN")
			responds(t, http.StatusOK, "")
			plugin("/late.wasm", "FAIL_CLOSE")
			responds(t, http.StatusForbidden, "")
			there.Store(true)
			responds(t, http.StatusOK, "late.wasm")
			if got := adminGet(t, admin, "/stats?filter=lds.update_rejected"); !strings.Contains(got, "lds.update_rejected: 0\n") {
				t.Errorf("Envoy refused listeners: %s", got)
			}
			metrics := adminGet(t, "127.3.0.1:15020", "/stats/prometheus")
			for _, want := range []string{
				"istio_agent_wasm_cache_entries 3",
				`istio_agent_wasm_cache_lookup_count{hit="false"} `,
				`istio_agent_wasm_remote_fetch_count{result="success"} 3`,
				`istio_agent_wasm_remote_fetch_count{result="download_failure"} `,
				`istio_agent_wasm_config_conversion_count{result="success"} `,
				`istio_agent_wasm_config_conversion_count{result="fetch_failure"} `,
				`istio_agent_wasm_config_conversion_duration_bucket{le="16384"} `,
			} {
				if !strings.Contains(metrics, "\n"+want) {
					t.Errorf("the metrics lack %q: %.3000s", want, metrics)
				}
			}
		})
	}
}

// pulledModule is a gateway with a WasmPlugin whose module is in a registry that asks for credentials.
const pulledModule = `apiVersion: v1
kind: Pod
metadata: {name: ingress, namespace: edge, labels: {istio: ingress}}
spec: {serviceAccountName: ingress, containers: [{name: proxy}]}
status: {podIP: 10.11.0.9, phase: Running}
---
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: edge}
spec: {selector: {istio: ingress}, ports: [{name: http, port: 80, targetPort: 8880}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shop, namespace: edge}
spec: {selector: {istio: ingress}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: edge}
spec: {hosts: ["*"], gateways: [shop], http: [{directResponse: {status: 200, body: {string: hello}}}]}
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: pulled, namespace: edge}
spec: {url: "oci://%s/team/plugin:v1", imagePullSecret: pull}
`

// TestPulledModule: the agent of a gateway fetches a module from a registry with the credentials of
// the plugin's Secret, once there is one. Neither Envoy nor a page of the control plane shows them.
func TestPulledModule(t *testing.T) {
	const password = "correct horse battery staple"
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	images := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, got, _ := r.BasicAuth(); user != "u" || got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(images.Close)
	host := strings.TrimPrefix(images.URL, "http://")
	ref, err := name.ParseReference(host+"/team/plugin:v1", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), static.NewLayer(headerModule("pulled"), "application/wasm"))
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image, remote.WithAuth(&authn.Basic{Username: "u", Password: password})); err != nil {
		t.Fatal(err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte("u:" + password))
	config := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth)
	secret := fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: pull, namespace: edge}\ntype: kubernetes.io/dockerconfigjson\nstringData:\n  .dockerconfigjson: '%s'\n", config)

	dir := harness.ShortDir(t)
	mesh := helloworldMesh(t, "127.0.0.1:1")
	replace(t, filepath.Join(mesh, "cluster1", "gateway.yaml"), fmt.Sprintf(pulledModule, host))
	_, secure := controlPlane(t, dir, mesh)
	p := proxy{"ingress", "router", "edge", "ingress", "127.3.0.1", map[string]string{"istio": "ingress"}}
	stop := p.start(t, dir, secure, "WASM_INSECURE_REGISTRIES="+host)
	defer stop()
	client := dial.HTTPClient(deadline, nil)
	client.Transport.(*http.Transport).DisableKeepAlives = true
	responds := func(status int, header string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the status is %d, the header %q", status, header), func() error {
			resp, err := client.Get("http://127.3.0.1:8880/")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if got := resp.Header.Get("x-wasm"); resp.StatusCode != status || got != header {
				return fmt.Errorf("%s, %q", resp.Status, got)
			}
			return nil
		})
	}
	responds(http.StatusForbidden, "")
	serveLog := func() string {
		text, err := os.ReadFile(filepath.Join(dir, "serve.log"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	eventually(t, "the control plane reports the missing Secret", func() error {
		if !strings.Contains(serveLog(), "secret edge/pull of cluster cluster1 not found") {
			return errors.New("no warning")
		}
		return nil
	})
	replace(t, filepath.Join(mesh, "cluster1", "secret.yaml"), secret)
	responds(http.StatusOK, "pulled")

	shown := adminGet(t, admin, "/config_dump") + serveLog()
	agentLog, err := os.ReadFile(filepath.Join(dir, "ingress.log"))
	if err != nil {
		t.Fatal(err)
	}
	shown += string(agentLog)
	token, err := os.ReadFile(filepath.Join(dir, "ingress.token"))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodGet, "http://127.3.0.2:8080/debug/config_dump?proxyID=ingress.edge", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	if !strings.Contains(page, "[redacted]") {
		t.Errorf("the control plane's dump has no plugin with hidden credentials: %.2000s", page)
	}
	rendered, err := exec.Command(meshctl, "render", "-f", "cluster1="+absolute(t, filepath.Join(mesh, "cluster1")), "--proxy", "ingress.edge", "-o", "configdump").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, rendered)
	}
	shown += page + string(rendered)
	for _, hidden := range []string{auth, password} {
		if strings.Contains(shown, hidden) {
			t.Errorf("%q is shown", hidden)
		}
	}
}
