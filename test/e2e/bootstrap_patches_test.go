package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// bootstrapPatches has patches of the bootstrap for one workload: one of the root namespace, two of
// its own namespace, of which the second repeats a name, and two that are refused.
const bootstrapPatches = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: root, namespace: istio-system}
spec:
  configPatches:
  - applyTo: BOOTSTRAP
    patch: {operation: MERGE, value: {stats_flush_interval: 9s, static_resources: {clusters: [{name: patched-by-root, connect_timeout: 1s}]}}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: web, namespace: sample}
spec:
  workloadSelector: {labels: {app: web}}
  configPatches:
  - applyTo: BOOTSTRAP
    match: {context: SIDECAR_INBOUND, proxy: {metadata: {TIER: gold}}}
    patch:
      operation: MERGE
      value:
        stats_flush_interval: 3s
        stats_sinks: [{name: envoy.stat_sinks.statsd, typed_config: {"@type": type.googleapis.com/envoy.config.metrics.v3.StatsdSink, address: {socket_address: {protocol: UDP, address: 127.3.0.9, port_value: 8125}}}}]
        layered_runtime: {layers: [{name: patched, static_layer: {patched.key: "17"}}]}
        stats_config: {stats_tags: [{tag_name: patched_tag, regex: "^cluster_manager(\\.(cds))"}]}
        overload_manager:
          actions: [{name: envoy.overload_actions.stop_accepting_connections, triggers: [{name: envoy.resource_monitors.global_downstream_max_connections, threshold: {value: 0.9}}]}]
  - applyTo: BOOTSTRAP
    patch: {operation: MERGE, value: {static_resources: {clusters: [{name: patched-by-root}]}}}
  - applyTo: BOOTSTRAP
    patch: {operation: ADD, value: {stats_flush_interval: 1s}}
  - applyTo: BOOTSTRAP
    patch: {operation: MERGE, value: {admin: {address: {socket_address: {address: 0.0.0.0, port_value: 15000}}}}}
`

// TestBootstrapPatches: an agent that requests the patches of the bootstrap starts Envoy with them,
// and another agent without. The control plane reports the patches without effect, and the agent
// those that changed.
func TestBootstrapPatches(t *testing.T) {
	dir := harness.ShortDir(t)
	mesh := filepath.Join(dir, "mesh")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write := func(patches string) {
		if err := os.WriteFile(filepath.Join(mesh, "cluster1", "patches.yaml"), []byte(patches), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(bootstrapPatches)
	_, secure := controlPlane(t, dir, mesh)

	config := "PROXY_CONFIG={discoveryAddress: '" + secure + "', concurrency: 1, terminationDrainDuration: 0s, proxyStatsMatcher: {inclusionPrefixes: [overload]}"
	sidecar := proxy{"web", "sidecar", "sample", "web", "127.3.0.1", map[string]string{"app": "web"}}
	parts := map[string]string{
		"/clusters":                     "patched-by-root::",
		"/runtime":                      "patched.key",
		"/config_dump?mask=bootstrap":   `"stats_flush_interval": "3s"`,
		"/stats/prometheus?filter=cds":  `patched_tag="cds"`,
		"/stats?filter=overload.*stop_": "overload.envoy.overload_actions.stop_accepting_connections",
	}
	stop := sidecar.start(t, dir, secure, "ISTIO_META_TIER=gold", config+", proxyMetadata: {BOOTSTRAP_XDS_AGENT: 'true'}}")
	for path, part := range parts {
		if text := adminGet(t, admin, path); !strings.Contains(text, part) {
			t.Errorf("%s lacks %s:\n%s", path, part, text)
		}
	}
	for _, want := range []string{
		"EnvoyFilter sample/web (cluster cluster1): spec.configPatches[1] has no effect on the bootstrap: an earlier patch has a cluster \"patched-by-root\"",
		"spec.configPatches[2].patch.operation: ADD is not possible for BOOTSTRAP: use MERGE: the patch has no effect",
		"spec.configPatches[3].patch.value.admin.address: belongs to the agent, which controls Envoy there: use proxyAdminPort of ProxyConfig: the patch has no effect",
	} {
		eventually(t, "the control plane reports a patch", func() error {
			if text := adminGet(t, "127.3.0.2:8080", "/ready?verbose"); !strings.Contains(text, want) {
				return fmt.Errorf("it does not report %s, but\n%s", want, text)
			}
			return nil
		})
	}
	write(strings.Replace(bootstrapPatches, "stats_flush_interval: 3s", "stats_flush_interval: 4s", 1))
	eventually(t, "the agent reports changed patches", func() error {
		log, err := os.ReadFile(filepath.Join(dir, "web.log"))
		if err == nil && !strings.Contains(string(log), "they apply when the proxy starts again") {
			err = fmt.Errorf("its log is\n%s", log)
		}
		return err
	})
	stop()

	sidecar.name = "unpatched"
	stop = sidecar.start(t, dir, secure, "ISTIO_META_TIER=gold", config+"}")
	defer stop()
	for path, part := range parts {
		if text := adminGet(t, admin, path); strings.Contains(text, part) {
			t.Errorf("without the variable, %s has %s", path, part)
		}
	}
}
