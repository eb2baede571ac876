package snapshot

import (
	"net/netip"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// ServiceExport makes the endpoints of its cluster's Service of the same name part of the
// clusterset.local service.
type ServiceExport struct{ Meta }

// Key implements Object.
func (o *ServiceExport) Key() Key { return o.key(KindServiceExport) }

// ServiceImport defines the clusterset.local service of its name, and the addresses of it in
// its cluster.
type ServiceImport struct {
	Meta
	VIPs []netip.Addr
}

// Key implements Object.
func (o *ServiceImport) Key() Key { return o.key(KindServiceImport) }

// Host returns the host of the service.
func (o *ServiceImport) Host() string { return mesh.ServiceHost(o.Name, o.Namespace, clusterSet) }

// clusterSet is the DNS domain of exported services.
const clusterSet = "clusterset.local"

// ExportedName returns the name and namespace of the Services that a host of clusterset.local
// stands for.
func ExportedName(host string) (name, namespace string, ok bool) {
	short, ok := strings.CutSuffix(host, ".svc."+clusterSet)
	name, namespace, two := strings.Cut(short, ".")
	return name, namespace, ok && two && !strings.Contains(namespace, ".")
}
