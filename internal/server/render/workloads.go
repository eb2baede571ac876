package render

import (
	"cmp"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Workload is a workload with a proxy. Its pods count as one.
type Workload struct {
	Name      string
	Namespace string
	Node      Node // of one of its pods
}

// Workloads returns the workloads of a namespace that have proxies, sorted by name, and
// the number of pods without a proxy.
func (m *Mesh) Workloads(cluster mesh.ClusterID, namespace string) (with []Workload, without int) {
	for key, pod := range m.snapshot.Pods.All() {
		switch {
		case pod.Cluster != cluster, pod.Namespace != namespace, len(pod.IPs) == 0:
			continue
		case !m.hasProxy(pod) || pod.Proxyless:
			without++
			continue
		}
		with = append(with, Workload{Name: cmp.Or(pod.Workload, pod.Name), Namespace: namespace, Node: m.node(key, pod)})
	}
	slices.SortFunc(with, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(nameOf(a.Node), nameOf(b.Node)))
	})
	return slices.CompactFunc(with, func(a, b Workload) bool { return a.Name == b.Name }), without
}

// TrustDomain returns the trust domain of the mesh.
func (m *Mesh) TrustDomain() string { return m.snapshot.Mesh.TrustDomain }

// Identities returns the identities of all workloads of the mesh, sorted.
func (m *Mesh) Identities() []mesh.Identity {
	seen := map[mesh.Identity]bool{}
	var out []mesh.Identity
	for _, pod := range m.snapshot.Pods.All() {
		id := mesh.Identity{TrustDomain: m.TrustDomain(), Namespace: pod.Namespace, ServiceAccount: pod.ServiceAccount}
		if pod.ServiceAccount != "" && !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	slices.SortFunc(out, func(a, b mesh.Identity) int { return cmp.Compare(a.String(), b.String()) })
	return out
}
