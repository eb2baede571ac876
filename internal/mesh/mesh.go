// Package mesh holds the names and values of the field that every other
// package shares: cluster ids, networks, trust domains, SPIFFE identities,
// node ids, the cluster-name grammar, localities, protocols, and the labels,
// ports and annotations of Istio's contracts. It imports nothing of ours and
// does no I/O.
package mesh

// ClusterID names one Kubernetes cluster of the mesh, such as "cluster1".
type ClusterID string

// Valid reports whether the id can stand in file names, labels and
// certificates: letters, digits, '.', '-' and '_', at most 63 bytes, first and
// last alphanumeric. Istio's default, "Kubernetes", is valid.
func (c ClusterID) Valid() bool {
	if c == "" || len(c) > 63 {
		return false
	}
	for i := range len(c) {
		b := c[i]
		alnum := b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
		inner := i > 0 && i < len(c)-1
		if !alnum && (!inner || b != '.' && b != '-' && b != '_') {
			return false
		}
	}
	return true
}

// NetworkID names one network. Two workloads of one network reach each other
// directly; workloads of different networks go through a gateway. The empty
// id means "not known", which is the same network as every other.
type NetworkID string

// DefaultTrustDomain is the trust domain of a mesh that names none.
const DefaultTrustDomain = "cluster.local"

// DefaultDomain is the DNS suffix of Kubernetes services.
const DefaultDomain = "cluster.local"

// DefaultSystemNamespace is where the control plane lives.
const DefaultSystemNamespace = "istio-system"

// ServiceHost is the host name of a Kubernetes service.
func ServiceHost(name, namespace, domain string) string {
	return name + "." + namespace + ".svc." + domain
}
