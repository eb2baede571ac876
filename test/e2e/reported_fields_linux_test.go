package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// reportedFields has objects with fields that have no effect, or another one than their users may
// expect.
const reportedFields = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "{protocolDetectionTimeout: 2s, accessLogFile: LOG, accessLogFormat: '%REQ(:PATH)%'}"}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {serviceAccountName: client}
status: {podIP: 10.11.0.77}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: older, namespace: shop, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  hosts: [older.internal]
  addresses: [10.96.0.80]
  resolution: STATIC
  ports: [{number: 7001, name: tcp, protocol: TCP, targetPort: 9002}]
  endpoints: [{address: 10.11.0.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: newer, namespace: shop, creationTimestamp: "2026-01-02T00:00:00Z"}
spec:
  hosts: [newer.internal]
  addresses: [10.96.0.80]
  resolution: STATIC
  ports: [{number: 7001, name: tcp, protocol: TCP, targetPort: 9002}]
  endpoints: [{address: 10.11.0.2}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: selecting, namespace: shop}
spec:
  hosts: [selecting.internal]
  addresses: [10.96.0.81]
  resolution: NONE
  ports: [{number: 7002, name: tcp, protocol: TCP}]
  workloadSelector: {labels: {app: client}}
---
apiVersion: v1
kind: Service
metadata: {name: apis, namespace: shop}
spec:
  clusterIP: 10.96.0.82
  ports:
  - {name: http-first, port: 7003, targetPort: 9002, appProtocol: example.com/custom}
  - {name: tcp-second, port: 7004, targetPort: 9001, appProtocol: example.com/custom}
  - {name: tcp-web, port: 7005, targetPort: 9001, appProtocol: http-web}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: apis, namespace: shop, labels: {kubernetes.io/service-name: apis}}
addressType: IPv4
ports: [{name: http-first, port: 9002}, {name: tcp-second, port: 9001}, {name: tcp-web, port: 9001}]
endpoints: [{addresses: [10.11.0.1]}]
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: disabled, namespace: shop}
spec: {accessLogging: [{disabled: true}]}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: versions, namespace: shop}
spec:
  configPatches:
  - applyTo: VIRTUAL_HOST
    match: {context: SIDECAR_OUTBOUND, proxy: {proxyVersion: '^1\.31.*'}}
    patch: {operation: MERGE, value: {response_headers_to_add: [{header: {key: x-current, value: "yes"}}]}}
  - applyTo: VIRTUAL_HOST
    match: {context: SIDECAR_OUTBOUND, proxy: {proxyVersion: '^1\.18.*'}}
    patch: {operation: MERGE, value: {response_headers_to_add: [{header: {key: x-old, value: "yes"}}]}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: contrib, namespace: shop}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND, listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: INSERT_BEFORE
      value: {name: golang, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.golang.v3alpha.Config, library_id: a, library_path: /a.so, plugin_name: a}}
`

// finds checks that analyze reports each text about the objects of a directory.
func finds(t *testing.T, dir string, texts ...string) {
	t.Helper()
	out, _ := exec.Command(meshctl, "analyze", filepath.Join(dir, "cluster1")).CombinedOutput() // it exits with 3 if it finds something
	for _, text := range texts {
		if !strings.Contains(string(out), text) {
			t.Errorf("analyze does not report %q:\n%s", text, out)
		}
	}
}

// TestReportedFields: requests and connections do what the documentation says about fields without
// their usual effect, and analyze reports these fields.
func TestReportedFields(t *testing.T) {
	if !inPod(t) {
		return
	}
	log := filepath.Join(harness.ShortDir(t), "access.log")
	p := startPod(t, strings.Replace(reportedFields, "LOG", log, 1), "10.11.0.77")
	for _, pod := range []string{"v1", "v2"} {
		p.address(t, podIPs[pod])
		startPodServers(t, pod, podIPs[pod])
	}
	p.address(t, "10.96.0.81")
	answers(t, "10.96.0.81:7002", "dialed")

	if got := streamed(t, "", "10.96.0.80:7001", ""); got != "v1" {
		t.Errorf("two hosts of TCP at one address: %q, want the older one", got)
	}
	served(t, "http://10.96.0.81:7002", overTCP, "dialed") // not the selected workload
	if got := streamed(t, "", "10.96.0.82:7003", ""); got != "v1" {
		t.Errorf("a server that sends first, at a port http-… with an unknown appProtocol: %q", got)
	}
	served(t, "http://10.96.0.82:7004", outboundHTTP, "v1")
	served(t, "http://10.96.0.82:7005", outboundHTTP, "v1")
	if got := requested(t, "http://10.96.0.82:7005/logged", "apis"); got.header.Get("X-Current") != "yes" || got.header.Get("X-Old") != "" {
		t.Errorf("patches for versions of Istio: %+v", got)
	}
	eventually(t, "the request is logged although a Telemetry without providers disables logs", func() error {
		if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "/logged") {
			return fmt.Errorf("%q, %w", text, err)
		}
		return nil
	})
	refusedNothing(t, "127.0.0.1:15000")
	finds(t, p.mesh,
		"port 7001 at 10.96.0.80: proxies pass connections on to older.internal, not to newer.internal",
		"spec.workloadSelector: has no effect: with resolution NONE",
		"spec.ports[0]: port 7003 ", "spec.ports[1]: port 7004 ",
		"spec.accessLogging[0].providers: is empty",
		`golang.v3alpha.Config" is not in upstream Envoy`)
}

// modesOfGateways has a WasmPlugin without a module, and a Telemetry that turns the log off, for the
// connections of a mode at a gateway.
const modesOfGateways = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "{accessLogFile: LOG, accessLogFormat: '%%REQ(:PATH)%%'}"}
---
apiVersion: v1
kind: Pod
metadata: {name: ingress, namespace: edge, labels: {istio: ingress}}
spec: {serviceAccountName: ingress, containers: [{name: proxy}]}
status: {podIP: 10.11.0.9, phase: Running}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec: {selector: {istio: ingress}, servers: [{port: {number: 8880, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: edge}
spec: {hosts: ["*"], gateways: [edge], http: [{directResponse: {status: 200}}]}
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: modes, namespace: edge}
spec: {selector: {matchLabels: {istio: ingress}}, match: [{mode: %[1]s}], url: "file:///does/not/exist.wasm"}
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: modes, namespace: edge}
spec: {selector: {matchLabels: {istio: ingress}}, accessLogging: [{match: {mode: %[2]s}, disabled: true, providers: [{name: envoy}]}]}
`

// TestModesOfGateways: the connections of gateways have mode CLIENT. SERVER has no effect on their
// requests, and analyze reports it.
func TestModesOfGateways(t *testing.T) {
	dir := harness.ShortDir(t)
	mesh, log := filepath.Join(dir, "mesh"), filepath.Join(dir, "access.log")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	objects := func(plugin, telemetry string) {
		replace(t, filepath.Join(mesh, "cluster1", "mesh.yaml"), fmt.Sprintf(strings.Replace(modesOfGateways, "LOG", log, 1), plugin, telemetry))
	}
	objects("SERVER", "SERVER")
	finds(t, mesh, "spec.match[0].mode: SERVER has no effect: all workloads are gateways", "spec.accessLogging[0].match.mode: SERVER has no effect: all workloads are gateways")
	_, secure := controlPlane(t, dir, mesh)
	gateway := proxy{"ingress", "router", "edge", "ingress", "10.11.0.9", map[string]string{"istio": "ingress"}}
	stop := gateway.start(t, dir, secure)
	defer func() { stop() }()
	responds := func(path string, status int) {
		t.Helper()
		eventually(t, fmt.Sprint(path, " has status ", status), func() error {
			if got := requested(t, "http://"+gatewayAt+":8880"+path, "edge.example.com"); got.status != status {
				return fmt.Errorf("status %d", got.status)
			}
			return nil
		})
	}
	responds("/server", http.StatusOK)
	eventually(t, "the log stays on", func() error {
		if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "/server") {
			return fmt.Errorf("%q, %w", text, err)
		}
		return nil
	})
	// With the right mode, both apply.
	objects("CLIENT", "SERVER")
	responds("/client", http.StatusForbidden)
	objects("SERVER", "CLIENT")
	eventually(t, "Envoy has a listener without a log", func() error {
		if dump := adminGet(t, admin, "/config_dump?resource=dynamic_listeners"); strings.Contains(dump, log) {
			return errors.New("a listener has the log")
		}
		return nil
	})
	responds("/unlogged", http.StatusOK)
	stop() // Envoy writes the rest of the log
	stop = func() {}
	if text, err := os.ReadFile(log); err != nil || strings.Contains(string(text), "/unlogged") {
		t.Errorf("mode CLIENT does not turn the log off: %q, %v", text, err)
	}
}
