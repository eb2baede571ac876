// Package mesh holds the names and values of the field that every other
// package shares: cluster ids, networks, trust domains, SPIFFE identities,
// node ids, the cluster-name grammar, localities, protocols, and the labels,
// ports and annotations of Istio's contracts. It imports nothing of ours and
// does no I/O.
package mesh

import (
	"fmt"
	"net/netip"
	"strings"
)

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

// Ports of Istio's contracts.
const (
	PortEnvoyAdmin      = 15000
	PortOutbound        = 15001
	PortInbound         = 15006
	PortPlaintextXDS    = 15010
	PortSecureXDS       = 15012
	PortMonitoring      = 15014
	PortAgentStatus     = 15020
	PortEnvoyReadiness  = 15021
	PortEnvoyPrometheus = 15090
	PortEastWest        = 15443
)

// Labels and annotations of Istio's contracts.
const (
	LabelNetwork           = "topology.istio.io/network"
	LabelSubzone           = "topology.istio.io/subzone"
	LabelRegion            = "topology.kubernetes.io/region"
	LabelZone              = "topology.kubernetes.io/zone"
	LabelTLSMode           = "security.istio.io/tlsMode"
	LabelGatewayPort       = "networking.istio.io/gatewayPort"
	LabelLocality          = "istio-locality"
	LabelCanonicalName     = "service.istio.io/canonical-name"
	LabelCanonicalRevision = "service.istio.io/canonical-revision"
	LabelServiceName       = "kubernetes.io/service-name"
	LabelMCSServiceName    = "multicluster.kubernetes.io/service-name"

	AnnotationExportTo  = "networking.istio.io/exportTo"
	AnnotationTemplates = "inject.istio.io/templates"
	// AnnotationHealthChecks of a WorkloadEntry, when "true", has it be healthy only
	// while its condition ConditionHealthy says so.
	AnnotationHealthChecks = "proxy.istio.io/health-checks-enabled"
	ConditionHealthy       = "Healthy"
)

// GRPCServerListener is what the names of the listeners begin with that gRPC
// servers ask for; the address that the server listens on follows.
const GRPCServerListener = "xds.istio.io/grpc/lds/inbound/"

// MetadataNamespace is where endpoints have metadata of meshctl's own, and
// MetadataNetwork the key of the network there, when it is not the proxy's.
const (
	MetadataNamespace = "meshctl"
	MetadataNetwork   = "network"
)

// TLSModeIstio is the value of LabelTLSMode on pods that accept mesh mTLS.
const TLSModeIstio = "istio"

// Locality is where an endpoint or a proxy runs. Empty parts are unknown.
type Locality struct{ Region, Zone, Subzone string }

// String renders region/zone/subzone without trailing empty parts.
func (l Locality) String() string {
	return strings.TrimRight(l.Region+"/"+l.Zone+"/"+l.Subzone, "/")
}

// ParseLocality reads region/zone/subzone; missing parts stay empty.
func ParseLocality(s string) Locality {
	p := append(strings.SplitN(s, "/", 3), "", "", "")
	return Locality{Region: p[0], Zone: p[1], Subzone: p[2]}
}

// Compare orders localities by region, zone, subzone.
func (l Locality) Compare(o Locality) int {
	if c := strings.Compare(l.Region, o.Region); c != 0 {
		return c
	}
	if c := strings.Compare(l.Zone, o.Zone); c != 0 {
		return c
	}
	return strings.Compare(l.Subzone, o.Subzone)
}

// ServiceHost is the host name of a Kubernetes service.
func ServiceHost(name, namespace, domain string) string {
	return name + "." + namespace + ".svc." + domain
}

// NodeType says what kind of proxy a node is.
type NodeType string

// The kinds of proxies that meshctl configures.
const (
	Sidecar NodeType = "sidecar"
	Router  NodeType = "router"
)

// NodeID is the xDS node id of Istio's contract:
// <type>~<ip>~<name>.<namespace>~<dns domain>.
type NodeID struct {
	Type      NodeType
	IP        netip.Addr
	Name      string
	Namespace string
	Domain    string
}

// String renders the id as it goes on the wire.
func (n NodeID) String() string {
	return fmt.Sprintf("%s~%s~%s.%s~%s", n.Type, n.IP, n.Name, n.Namespace, n.Domain)
}

// ProxyID is the short form that tables and status pages show: name.namespace.
func (n NodeID) ProxyID() string { return n.Name + "." + n.Namespace }

// maxNodeID bounds a node id, whose parts are DNS names and one address.
const maxNodeID = 1024

// ParseNodeID reads a node id. The error says which part is wrong.
func ParseNodeID(s string) (NodeID, error) {
	if len(s) > maxNodeID {
		return NodeID{}, fmt.Errorf("node id is longer than %d bytes", maxNodeID)
	}
	parts := strings.Split(s, "~")
	if len(parts) != 4 {
		return NodeID{}, fmt.Errorf("node id %q: want <type>~<ip>~<name>.<namespace>~<domain>", s)
	}
	n := NodeID{Type: NodeType(parts[0]), Domain: parts[3]}
	if n.Type != Sidecar && n.Type != Router {
		return NodeID{}, fmt.Errorf("node id %q: type %q is neither sidecar nor router", s, parts[0])
	}
	ip, err := netip.ParseAddr(parts[1])
	if err != nil {
		return NodeID{}, fmt.Errorf("node id %q: %q is not an IP address", s, parts[1])
	}
	n.IP = ip
	dot := strings.LastIndexByte(parts[2], '.')
	if dot <= 0 || dot == len(parts[2])-1 {
		return NodeID{}, fmt.Errorf("node id %q: %q is not <name>.<namespace>", s, parts[2])
	}
	n.Name, n.Namespace = parts[2][:dot], parts[2][dot+1:]
	if !IsDNSLabel(n.Namespace) {
		return NodeID{}, fmt.Errorf("node id %q: namespace %q is not a DNS label", s, n.Namespace)
	}
	return n, nil
}

// IsDNSLabel reports whether s is a DNS-1123 label: lower-case letters,
// digits and '-', at most 63 bytes, first and last alphanumeric.
func IsDNSLabel(s string) bool {
	if s == "" || len(s) > 63 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (c != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return true
}

// IsDNSName reports whether s is a DNS-1123 subdomain: labels joined by dots,
// at most 253 bytes.
func IsDNSName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !IsDNSLabel(label) {
			return false
		}
	}
	return true
}
