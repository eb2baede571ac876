package server

import (
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
)

// TestWorkloadOfIdentity: an identity of one workload has what all its pods agree in. An identity of
// several workloads, of another trust domain or of no pod has none.
func TestWorkloadOfIdentity(t *testing.T) {
	pod := func(name, account, workload, version string) string {
		return "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: shop, labels: {app: web, version: " + version +
			", service.istio.io/workload-name: " + workload + "}}\nspec: {serviceAccountName: " + account + ", containers: []}\nstatus: {podIP: 10.0.0.1}\n"
	}
	s := start(t, func(c *Config) {
		write(t, c.ConfigDir, "pods.yaml", pod("a", "one", "web", "v1")+pod("b", "one", "web", "v1")+
			pod("c", "rolling", "web", "v1")+pod("d", "rolling", "web", "v2")+pod("e", "default", "web", "v1")+pod("f", "default", "other", "v1"))
	})
	one := mesh.WorkloadLabels{Name: "web", Service: "web", Revision: "v1", App: "web", Version: "v1", Cluster: "cluster1"}
	rolling := one
	rolling.Revision, rolling.Version = "", ""
	waitFor(t, "the pods", func() bool { now := s.registry.Current(); return now != nil && now.Pods.Len() == 6 })
	domain := "spiffe://" + s.registry.Current().Mesh.TrustDomain
	for identity, want := range map[string]mesh.WorkloadLabels{
		domain + "/ns/shop/sa/one": one, domain + "/ns/shop/sa/rolling": rolling, domain + "/ns/shop/sa/default": {},
		domain + "/ns/shop/sa/nobody": {}, "spiffe://elsewhere/ns/shop/sa/one": {}, "": {},
	} {
		if got, ok := s.workloadOf(identity); got != want || ok != (want != mesh.WorkloadLabels{}) {
			t.Errorf("%q: %+v %t, want %+v", identity, got, ok, want)
		}
	}
}
