package snapshot

import (
	"net/netip"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Endpoints are the endpoints of one service in all clusters, by service port
// name, each list sorted by cluster and address.
type Endpoints struct {
	Host   string
	ByPort map[string][]Endpoint
}

// Health of an endpoint.
type Health uint8

// Endpoints that terminate are left out of the facts.
const (
	Healthy Health = iota
	Unhealthy
)

// Endpoint is one address of one service port.
type Endpoint struct {
	Address  netip.Addr
	Port     uint32
	Cluster  mesh.ClusterID
	Network  mesh.NetworkID
	Locality mesh.Locality
	Health   Health
	// MTLS is set when the pod has a proxy that accepts mTLS on the port:
	// its tlsMode label says istio and PeerAuthentication does not disable
	// it.
	MTLS bool
	// TLSMode says that the pod's tlsMode label is istio.
	TLSMode bool
	// DirectTLS says that mTLS is accepted whatever protocol the client offers
	// by ALPN: plaintext is refused (STRICT), or gRPC serves without a proxy. A
	// permissive proxy takes for mTLS only what offers one of Istio's protocols.
	DirectTLS bool
	Labels    map[string]string
	// Workload is "<workload>;<namespace>;<canonical name>;<canonical
	// revision>;<cluster>", Istio's endpoint metadata.
	Workload string
	Pod      string // key of Pods, empty when no pod is known
	Node     string // the Kubernetes node, empty when it is not known
	// Hostname is the DNS label of the endpoint below the service's host, as
	// the pods of a StatefulSet have; mostly empty.
	Hostname string
	// Drained says that the endpoint is left out where others can take its
	// load, Demoted that it comes after the others, both because of its cluster.
	Drained, Demoted bool
	// Weight is its part of the load beside the others; 0 is 1.
	Weight uint32
}
