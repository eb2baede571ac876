// Package mesh holds the basic names and values of a mesh: ids of clusters, networks
// and nodes, SPIFFE identities, names of Envoy clusters, localities, protocols, and
// the ports, labels and annotations that Istio defines. It imports no other package
// of this module and does no I/O.
package mesh

import "strings"

// ClusterID names one Kubernetes cluster of the mesh, such as "cluster1".
type ClusterID string

// Valid reports whether the id is safe in file names, labels and certificates: at most
// 63 letters, digits, '.', '-' and '_', the first and the last alphanumeric. Istio's
// default, "Kubernetes", is valid.
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

// NetworkID names one network. Workloads of one network reach each other directly,
// workloads of different networks through a gateway. The empty id means that the
// network is not known; it counts as the same network as any other.
type NetworkID string

// DefaultTrustDomain is the trust domain of a mesh that sets none.
const DefaultTrustDomain = "cluster.local"

// DefaultDomain is the DNS suffix of Kubernetes services.
const DefaultDomain = "cluster.local"

// DefaultSystemNamespace is the namespace of the control plane.
const DefaultSystemNamespace = "istio-system"

// ServiceHost returns the host name of a Kubernetes service.
func ServiceHost(name, namespace, domain string) string {
	return name + "." + namespace + ".svc." + domain
}

// FullHost completes a short name of a Kubernetes Service, such as zipkin.istio-system.
func FullHost(host string) string {
	switch parts := strings.Split(host, "."); {
	case len(parts) == 2:
		return host + ".svc." + DefaultDomain
	case len(parts) == 3 && parts[2] == "svc":
		return host + "." + DefaultDomain
	}
	return host
}
