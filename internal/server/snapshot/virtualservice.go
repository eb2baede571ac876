package snapshot

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// MeshGateway is the gateway name that stands for all sidecars.
const MeshGateway = "mesh"

// VirtualService sets how requests and connections to its hosts are routed. All names in
// it are resolved: hosts are full and in lower case, and gateways have a namespace.
type VirtualService struct {
	Meta
	// Hosts holds the hosts. One may start with "*.", or be "*" for gateways. Without hosts,
	// the VirtualService only completes others, which delegate to it.
	Hosts []string
	// Gateways holds MeshGateway, and Gateway objects as <namespace>/<name>. It is never
	// empty.
	Gateways []string
	// ExportTo holds namespaces. Empty means the default of the mesh.
	ExportTo []string
	// The gateways of matches and the namespaces of delegates are resolved, too.
	HTTP []*networkingv1alpha3.HTTPRoute
	TLS  []*networkingv1alpha3.TLSRoute
	TCP  []*networkingv1alpha3.TCPRoute
}

// Key implements Object.
func (v *VirtualService) Key() Key { return v.key(KindVirtualService) }

// SameAs reports whether two objects mean the same. Their places may differ.
func (v *VirtualService) SameAs(other *VirtualService) bool {
	return v.Namespace == other.Namespace && v.Name == other.Name && v.Created.Equal(other.Created) &&
		slices.Equal(v.Hosts, other.Hosts) && slices.Equal(v.Gateways, other.Gateways) && slices.Equal(v.ExportTo, other.ExportTo) &&
		slices.EqualFunc(v.HTTP, other.HTTP, equalMessages) && slices.EqualFunc(v.TLS, other.TLS, equalMessages) &&
		slices.EqualFunc(v.TCP, other.TCP, equalMessages)
}

func equalMessages[M proto.Message](a, b M) bool { return proto.Equal(a, b) }

// HostMatches reports whether the hosts of a VirtualService overlap a host. Both may be
// wildcards.
func (v *VirtualService) HostMatches(host string) bool {
	return slices.ContainsFunc(v.Hosts, func(own string) bool { return HostsOverlap(own, host) })
}

// HostsOverlap reports whether two hosts, which may be wildcards, have a name in common.
func HostsOverlap(a, b string) bool {
	x, wildA := strings.CutPrefix(a, "*")
	y, wildB := strings.CutPrefix(b, "*")
	switch {
	case wildA && wildB:
		return strings.HasSuffix(x, y) || strings.HasSuffix(y, x)
	case wildA:
		return strings.HasSuffix(b, x)
	case wildB:
		return strings.HasSuffix(a, y)
	}
	return a == b
}
