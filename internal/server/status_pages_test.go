package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xds/history"
)

// TestNACKNotes: refused resources are listed, a bounded number of them.
func TestNACKNotes(t *testing.T) {
	since := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	var page xds.NACKs
	if got := nackNotes(page); len(got) != 0 {
		t.Errorf("notes of nothing: %q", got)
	}
	page.Refused = []history.QuarantinedResource{{Type: "CDS", Resource: "a", Streams: []string{"p.ns-1"}, Since: since, Error: "no\ngood"}}
	want := []string{
		"refused: 1",
		`CDS a: refused by 1 stream since 2026-05-04T03:02:01Z: "no\ngood"`,
	}
	if d := cmp.Diff(want, nackNotes(page)); d != "" {
		t.Error(d)
	}
	for i := range 2 * maxNotes {
		page.Refused = append(page.Refused, history.QuarantinedResource{Resource: fmt.Sprint(i)})
	}
	got := nackNotes(page)
	if more := "and 51 more refused resources; all are in: meshctl xds nacks -o json"; len(got) != maxNotes+2 || got[maxNotes+1] != more {
		t.Errorf("%d notes, want %q after %d: %q", len(got), more, maxNotes, got)
	}
}

// TestDuplicateExtensionsAreShown: /ready?verbose names an extension of two EnvoyFilters.
func TestDuplicateExtensionsAreShown(t *testing.T) {
	filter := func(name string) string {
		return fmt.Sprintf(`apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: %s, namespace: sample}
spec:
  configPatches:
  - applyTo: EXTENSION_CONFIG
    patch:
      operation: ADD
      value:
        name: greeting
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}
`, name)
	}
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "a.yaml", filter("a"))
		write(t, dir, "b.yaml", filter("b"))
	})
	const want = `EnvoyFilter sample/b (cluster cluster1): proxies that EnvoyFilter sample/a (cluster cluster1) also selects get extension "greeting" from there` + "\n"
	if _, body := get(t, s, "/ready?verbose"); !strings.Contains(body, want) {
		t.Errorf("/ready?verbose says %s, want %s", body, want)
	}
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the end of it", func() bool {
		_, body := get(t, s, "/ready?verbose")
		return !strings.Contains(body, "greeting")
	})
}

// TestUnknownProvidersAreShown: /ready?verbose names an access log provider of a Telemetry
// that MeshConfig lacks, until MeshConfig has it.
func TestUnknownProvidersAreShown(t *testing.T) {
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "telemetry.yaml", `apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: logs, namespace: sample}
spec: {accessLogging: [{providers: [{name: envoy}, {name: files}]}, {providers: [{name: files}]}]}
`)
	})
	const want = "Telemetry sample/logs (cluster cluster1): the access log provider files has no effect, as MeshConfig has no such provider with envoyFileAccessLog or envoyOtelAls\n"
	if _, body := get(t, s, "/ready?verbose"); strings.Count(body, want) != 1 || strings.Contains(body, "provider envoy") {
		t.Errorf("/ready?verbose returns %s, want once %s", body, want)
	}
	write(t, dir, "mesh.yaml", `apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "extensionProviders: [{name: Files, envoyFileAccessLog: {path: /dev/stdout}}]"}
`)
	waitFor(t, "the end of it", func() bool {
		_, body := get(t, s, "/ready?verbose")
		return !strings.Contains(body, "provider files")
	})
}

// TestUnusableAuthorizersAreShown: /ready?verbose names the provider of a CUSTOM policy that no proxy
// can ask, with the reason, until proxies can.
func TestUnusableAuthorizersAreShown(t *testing.T) {
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "policy.yaml", `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: sample}
spec: {action: CUSTOM, provider: {name: opa}, rules: [{}]}
`)
	})
	shows := func(reason string) {
		t.Helper()
		want := "AuthorizationPolicy sample/ask (cluster cluster1): " + reason + ": what its rules match is refused\n"
		waitFor(t, reason, func() bool {
			_, body := get(t, s, "/ready?verbose")
			return strings.Count(body, "sample/ask") == 1 && strings.Contains(body, want)
		})
	}
	provider := func(service string) {
		write(t, dir, "mesh.yaml", `apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "extensionProviders: [{name: opa, envoyExtAuthzGrpc: {service: `+service+`, port: 9191}}]"}
`)
	}
	service := func(port string) {
		write(t, dir, "service.yaml", `apiVersion: v1
kind: Service
metadata: {name: opa, namespace: policy}
spec: {clusterIP: 10.0.0.2, ports: [{name: grpc, port: `+port+`}]}
`)
	}
	shows("MeshConfig has no usable provider opa with envoyExtAuthzGrpc or envoyExtAuthzHttp")
	provider("opa.policy.svc.cluster.local:9191")
	shows("MeshConfig has no usable provider opa with envoyExtAuthzGrpc or envoyExtAuthzHttp")
	provider("opa.policy.svc.cluster.local")
	shows("no service has the host opa.policy.svc.cluster.local of the provider opa")
	service("9000")
	shows("the service opa.policy.svc.cluster.local has no port 9191, which the provider opa names")
	provider("other/opa.policy.svc.cluster.local")
	shows("the service opa.policy.svc.cluster.local of the provider opa is not in the namespace other")
	provider("policy/opa.policy.svc.cluster.local")
	service("9191")
	waitFor(t, "the end of it", func() bool {
		_, body := get(t, s, "/ready?verbose")
		return !strings.Contains(body, "sample/ask")
	})
}

// TestHostConflictsAreShown: the status page and /ready?verbose name a host that several
// objects define.
func TestHostConflictsAreShown(t *testing.T) {
	entry := func(namespace string) string {
		return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: %s}
spec: {hosts: [api.example.com], resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}]}
`, namespace)
	}
	s := start(t, func(c *Config) {
		write(t, c.ConfigDir, "a.yaml", entry("a"))
		write(t, c.ConfigDir, "b.yaml", entry("b"))
	})
	_, body := get(t, s, "/debug/clusters")
	var page struct {
		HostConflicts     []json.RawMessage
		HostConflictCount int
	}
	if err := json.Unmarshal([]byte(body), &page); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, c := range page.HostConflicts {
		if err := json.Compact(&got, c); err != nil {
			t.Fatal(err)
		}
	}
	const want = `{"host":"api.example.com","first":"ServiceEntry a/api","others":["ServiceEntry b/api"]}`
	if page.HostConflictCount != 1 || got.String() != want {
		t.Errorf("the page has %d conflicts, %s, want %s", page.HostConflictCount, got.String(), want)
	}
	const line = "host api.example.com: several objects define it, proxies use ServiceEntry a/api before ServiceEntry b/api\n"
	if _, body := get(t, s, "/ready?verbose"); !strings.Contains(body, line) {
		t.Errorf("/ready?verbose returns %s, want %s", body, line)
	}
}
