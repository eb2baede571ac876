package snapshot

import (
	"net/netip"

	"github.com/meshctl/meshctl/internal/mesh"
)

// ServiceEntry adds services to the mesh, one for each of its hosts.
type ServiceEntry struct {
	Meta
	// Hosts holds names in lower case. A name may start with "*.".
	Hosts []string
	VIPs  []netip.Addr
	CIDRs []netip.Prefix
	// AnyAddress reports whether the object names no address. An object all of whose addresses are
	// refused names some.
	AnyAddress bool
	Ports      []ServicePort
	External   bool // MESH_EXTERNAL
	Resolution Resolution
	Endpoints  []EntryEndpoint
	// Selector selects pods and WorkloadEntries as endpoints. Empty means Endpoints.
	Selector map[string]string
	ExportTo []string // nil means all namespaces
	// SubjectAltNames holds further identities that endpoints may have.
	SubjectAltNames []string
	Distribution    Distribution
	// Allocate reports whether hosts without addresses get one.
	Allocate bool
	// Allocated holds the addresses in the status of the object by host.
	Allocated map[string][]netip.Addr
}

// Key implements Object.
func (o *ServiceEntry) Key() Key { return o.key(KindServiceEntry) }

// EntryEndpoint is an endpoint that a ServiceEntry lists.
type EntryEndpoint struct {
	// Target is the host name of the endpoint, or its socket as unix://PATH. Empty means
	// the address of Workload, or an unknown address behind the gateways of its network
	// if Workload has none.
	Target   string
	Network  mesh.NetworkID
	Locality mesh.Locality
	Weight   uint32 // 0 means 1
	// Workload holds the address, the labels, the account and the ports by name.
	Workload Pod
}

// Resolution is the way in which proxies find the endpoints of a service.
type Resolution uint8

// The values of Resolution.
const (
	// ByEndpoints uses the endpoints that the control plane knows.
	ByEndpoints Resolution = iota
	// ByDestination uses the address to which the client connects (NONE).
	ByDestination
	// ByDNS resolves the host names of endpoints and uses all their addresses (DNS).
	ByDNS
	// ByFirstOfDNS uses the first address at a time (DNS_ROUND_ROBIN).
	ByFirstOfDNS
)

// DNS reports whether proxies resolve the host names of the endpoints.
func (r Resolution) DNS() bool { return r == ByDNS || r == ByFirstOfDNS }
