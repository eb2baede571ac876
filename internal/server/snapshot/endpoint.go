package snapshot

import (
	"net/netip"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Endpoints holds the endpoints of one service in all clusters.
type Endpoints struct {
	Service string // key in Snapshot.Services
	// ByPort holds the endpoints of each service port by the port's name, sorted by
	// cluster and address.
	ByPort map[string][]Endpoint
	// Networks holds the known networks of the endpoints, sorted.
	Networks []mesh.NetworkID
}

// Health is the health of an endpoint. Terminating endpoints are not in the facts.
type Health uint8

// The values of Health.
const (
	Healthy Health = iota
	Unhealthy
)

// Endpoint is one address of one service port.
type Endpoint struct {
	// Address is invalid if the endpoint has a Target, or if only a gateway of its
	// network leads to it.
	Address netip.Addr
	// Target is the host name of an endpoint that proxies resolve, or the path of its
	// socket as unix://PATH. Usually empty.
	Target   string
	Port     uint32
	Cluster  mesh.ClusterID
	Network  mesh.NetworkID
	Locality mesh.Locality
	Health   Health
	// MTLS reports whether the endpoint accepts mTLS: TLSMode is set, and no
	// PeerAuthentication disables mTLS on the port.
	MTLS bool
	// TLSMode reports whether the pod's label tlsMode is "istio": it has a proxy.
	TLSMode bool
	// DirectTLS reports whether the endpoint accepts mTLS with any ALPN protocol: its
	// mode is STRICT, or gRPC serves without a proxy. A PERMISSIVE proxy recognizes
	// mTLS only by Istio's ALPN protocols.
	DirectTLS bool
	Labels    map[string]string
	// Workload is Istio's endpoint metadata: "<workload>;<namespace>;<canonical
	// name>;<canonical revision>;<cluster>".
	Workload string
	Pod      string // key in Snapshot.Pods; empty if no pod is known
	Node     string // Kubernetes node; empty if not known
	// Hostname is the DNS label of the endpoint below the service's host, as pods of a
	// StatefulSet have one. Usually empty.
	Hostname string
	// Foreign reports whether a headless Service names a pod of another namespace. Connections to the
	// pod are not those of the Service.
	Foreign bool
	// Drained and Demoted come from the Balancing of the endpoint's cluster.
	Drained, Demoted bool
	// Weight is the weight relative to the other endpoints; 0 means 1.
	Weight uint32
}

// Balancing sets how the endpoints of a cluster take part in load balancing. The
// zero value is the default.
type Balancing struct {
	// Drained endpoints get load only if no other cluster has healthy ones.
	Drained bool
	// Demoted endpoints have the next lower priority.
	Demoted bool
	// Weight is the weight of each endpoint in percent, 1 to mesh.MaxWeight; 0 means
	// 100.
	Weight uint32
}
