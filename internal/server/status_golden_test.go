package server

import (
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3" // the filter of an EnvoyFilter
	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/xdswire"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// statusMesh is one service with a pod, one without, and one of another namespace
// that the Sidecar of apps does not import; and configuration of every kind.
const statusMesh = `apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: apps, labels: {app: web}}
spec: {serviceAccountName: web}
status: {phase: Running, podIP: 10.1.0.1, podIPs: [{ip: 10.1.0.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: apps, creationTimestamp: "2026-01-02T03:04:05Z"}
spec:
  clusterIP: 10.96.0.10
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp-admin, port: 81}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-abc, namespace: apps, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.1], targetRef: {kind: Pod, name: web-1, namespace: apps}}]
---
apiVersion: v1
kind: Service
metadata: {name: hidden, namespace: shop}
spec: {clusterIP: 10.96.0.11, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: own, namespace: apps, labels: {team: a}, creationTimestamp: "2026-01-02T03:04:05Z"}
spec:
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
  egress: [{hosts: ["./*"]}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: cross-network, namespace: istio-system}
spec:
  selector: {istio: eastwestgateway}
  servers: [{port: {number: 15443, name: tls, protocol: TLS}, tls: {mode: AUTO_PASSTHROUGH}, hosts: ["*.local"]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: apps}
spec: {host: web, trafficPolicy: {connectionPool: {tcp: {maxConnections: 3}}}, subsets: [{name: v1, labels: {version: v1}}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: script, namespace: apps}
spec:
  workloadSelector: {labels: {app: web}}
  priority: 5
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: INSERT_FIRST
      value:
        name: script
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "x"}}
`

// TestGoldenPages: pages over HTTP and xDS have the bodies of the golden files.
func TestGoldenPages(t *testing.T) {
	trust, mint := issuing(t)
	s := start(t, func(c *Config) {
		trust(c)
		write(t, c.ConfigDir, "mesh.yaml", statusMesh)
	})
	connect(t, s, "web-1").subscribeAll(t)
	dialWire(t, s, false, xdswire.SotW, "sidecar", xdswire.NameTableType).next()
	system, own := mint("istio-system", time.Hour), mint("apps", time.Hour)
	version := regexp.MustCompile(`"version": "\d+"`)
	for file, page := range map[string]string{
		"instancesz": "instancesz?pretty&namespace=apps", "instancesz-one": "instancesz?pretty&proxyID=web-1.apps",
		"sidecarz": "sidecarz?pretty&proxyID=web-1.apps", "configz": "configz?pretty", "configz-apps": "configz?pretty&namespace=apps",
		"resourcesz": "resourcesz?pretty", "push_status": "push_status?pretty",
	} {
		code, body := get(t, s, "/debug/"+page)
		if code != http.StatusOK {
			t.Errorf("%s: %d: %s", page, code, body)
			continue
		}
		r, err := istioctl(t, s, true, system, "istio.io/debug", page)
		if err != nil || len(r.GetResources()) != 1 || string(r.GetResources()[0].GetValue()) != body {
			t.Errorf("%s over xDS: %v, %v, want the same as over HTTP", page, r, err)
		}
		if _, err := istioctl(t, s, true, own, "istio.io/debug", page); err == nil || !strings.Contains(err.Error(), "PermissionDenied") {
			t.Errorf("%s for an identity of a workload: %v", page, err)
		}
		path := filepath.Join("testdata", "status", file+".json")
		body = version.ReplaceAllString(body, `"version": "SEQ"`)
		if *update {
			if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), body); diff != "" {
			t.Errorf("%s (-want +got):\n%s", page, diff)
		}
	}
	for page, want := range map[string]int{
		"sidecarz": http.StatusBadRequest, "sidecarz?proxyID=nobody": http.StatusNotFound, "instancesz?proxyID=nobody": http.StatusNotFound,
	} {
		if code, body := get(t, s, "/debug/"+page); code != want {
			t.Errorf("%s: %d, want %d: %s", page, code, want, body)
		}
	}
	if got := pilot(t, s)["pilot_eds_no_instances"]; got != 2 {
		t.Errorf("pilot_eds_no_instances is %v, want the two of push_status", got)
	}
}
