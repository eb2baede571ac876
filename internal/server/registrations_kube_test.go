package server

import (
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/test/kube"
)

// machineGroup is a service, and a WorkloadGroup whose machines are behind it.
const machineGroup = `apiVersion: v1
kind: Service
metadata: {name: machines, namespace: apps}
spec: {clusterIP: 10.96.0.9, selector: {app: machines}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: vm, namespace: apps}
spec: {template: {serviceAccount: web, ports: {http: 9090}, labels: {app: machines}}}
`

// TestMachinesAreRegistered: a machine that names a WorkloadGroup is an endpoint with an entry
// in the Kubernetes API, and learns at which ports it is called. Its reports of health count.
// When it is gone, its entry is deleted.
func TestMachinesAreRegistered(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	groups := strings.NewReplacer("WorkloadEntry", "WorkloadGroup", "workloadentries", "workloadgroups", "workloadentry", "workloadgroup").Replace(workloadEntries)
	definition, _, _ := strings.Cut(groups, "\n---\n")
	c.Apply(t, definition+"\n---\n"+workloadEntries+machineGroup)
	s := start(t, func(cfg *Config) { cfg.ConfigDir, cfg.KubeAccess = "", c.Config() })
	m, r := connectMachine(t, s, map[string]any{
		"AUTO_REGISTER_GROUP": "vm",
		"PROXY_CONFIG":        map[string]any{"readinessProbe": map[string]any{"tcpSocket": map[string]any{"port": 9090}}},
	})
	waitForHealth(t, s, snapshot.Unhealthy)
	m.says("")
	waitForHealth(t, s, snapshot.Healthy)
	entry := func(path string) string {
		return c.Kubectl(t, "", "-n", "apps", "get", "workloadentries", "-o", "jsonpath={range .items[*]}"+path+"{end}")
	}
	if got, want := entry(`{.metadata.name} {.spec.serviceAccount} {.metadata.ownerReferences[0].name}`), "vm-192.0.2.7 web vm"; got != want {
		t.Errorf("the entry is %q, want %q", got, want)
	}
	waitFor(t, "condition", func() bool { return entry(`{.status.conditions[0].status}`) == "True" })
	for !isCalledAt(t, r, 9090) { // until the listeners follow the entry
		m.send(&discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()})
		var err error
		if r, err = m.stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.conn.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "disconnectedAt", func() bool { return strings.Contains(entry(`{.metadata.annotations}`), "istio.io/disconnectedAt") })
	waitFor(t, "the end of the entry", func() bool { return entry(`{.metadata.name}`) == "" })
	waitFor(t, "the end of the endpoint", func() bool { _, known := healthOf(s); return !known })
	const deleted = `meshctl_workload_registrations_total{cluster="cluster1",result="deleted"}`
	waitFor(t, "the metric", func() bool { return metrics(t, s)[deleted] == 1 })
}
