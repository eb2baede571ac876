package proxy

import (
	"cmp"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// PodOf returns the pod of a proxy, or nil, and the labels of the workload. If no pod
// is known, it returns the labels of the node.
func PodOf(s *snapshot.Snapshot, n Node) (*snapshot.Pod, map[string]string) {
	if pod := s.Pods.Get(PodKey(n)); pod != nil {
		return pod, pod.Labels
	}
	return nil, n.Labels
}

// NodeOf returns the Kubernetes node of a proxy's pod, or "".
func NodeOf(pod *snapshot.Pod) string {
	if pod == nil {
		return ""
	}
	return pod.Node
}

// PodKey returns the key of a proxy's pod, or of its WorkloadEntry, in Snapshot.Pods.
func PodKey(n Node) string {
	if n.WorkloadEntry != "" {
		return snapshot.WorkloadEntryKey(n.Cluster, n.Namespace, n.WorkloadEntry)
	}
	return snapshot.PodKey{Cluster: n.Cluster, Namespace: n.Namespace, Name: n.ID.Name}.String()
}

// NetworkOf returns the network in a proxy's node metadata, else in its label, else the
// network of its cluster, else the one to which meshNetworks assigns its address.
func NetworkOf(s *snapshot.Snapshot, n Node, labels map[string]string) mesh.NetworkID {
	if n.Network != "" {
		return n.Network
	}
	if l := labels[mesh.LabelNetwork]; l != "" {
		return mesh.NetworkID(l)
	}
	return cmp.Or(s.NetworkOf(n.Cluster), snapshot.NetworkAt(s.Mesh.NetworkRanges, n.ID.IP))
}

// TrustDomains returns the trust domains that the mesh accepts, its own first.
func TrustDomains(m *snapshot.Mesh) []string {
	return append([]string{m.TrustDomain}, m.Aliases...)
}

// JoinNetworks returns networks as a text, which is comparable.
func JoinNetworks(list []mesh.NetworkID) string {
	parts := make([]string, len(list))
	for i, n := range list {
		parts[i] = string(n)
	}
	return strings.Join(parts, ",")
}
