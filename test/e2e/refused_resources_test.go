package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// refusedObjects makes configuration that meshctl accepts and Envoy refuses: a script with a syntax
// error, for inbound and outbound listeners. Beside it is a filter that Envoy accepts.
const refusedObjects = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: fine, namespace: sample}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch: {operation: INSERT_BEFORE, value: {name: fine, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "function envoy_on_request(h) end"}}}}
  - applyTo: CLUSTER
    match: {context: SIDECAR_OUTBOUND, cluster: {service: web.sample.svc.cluster.local}}
    patch: {operation: MERGE, value: {connect_timeout: 3s}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: syntax, namespace: sample}
spec:
  priority: 10
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch: {operation: INSERT_BEFORE, value: {name: script, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "function envoy_on_request(h"}}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: sample}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: sample}
spec: {clusterIP: 10.9.0.1, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: sample, labels: {app: web}}
spec: {serviceAccountName: web, containers: [{name: web, image: web}]}
status: {phase: Running, podIP: 127.3.0.1}
`

// TestRefusedResourcesNameTheirObjects: a real Envoy refuses a listener with a script that cannot be
// loaded. The control plane names the EnvoyFilter that added the script, and no other.
func TestRefusedResourcesNameTheirObjects(t *testing.T) {
	dir := harness.ShortDir(t)
	mesh := filepath.Join(dir, "mesh")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(mesh, "cluster1", "all.yaml"), []byte(refusedObjects), 0o600); err != nil {
		t.Fatal(err)
	}
	_, secure := controlPlane(t, dir, mesh)
	sidecar := proxy{"web", "sidecar", "sample", "web", "127.3.0.1", map[string]string{"app": "web"}}
	defer sidecar.start(t, dir, secure)()
	eventually(t, "the control plane names the EnvoyFilter", func() error {
		const want = "LDS 0.0.0.0_80, of EnvoyFilter sample/syntax: refused by 1 stream since "
		if text := adminGet(t, "127.3.0.2:8080", "/ready?verbose"); !strings.Contains(text, want) || !strings.Contains(text, "script load error") {
			return fmt.Errorf("it reports\n%s", text)
		}
		return nil
	})
}
