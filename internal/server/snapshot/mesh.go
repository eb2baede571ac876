package snapshot

import (
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Mesh holds the facts that apply to the whole mesh.
type Mesh struct {
	LocalCluster mesh.ClusterID
	TrustDomain  string
	Aliases      []string // trust-domain aliases, sorted
	// CACertificates are caCertificates.
	CACertificates []CACertificate
	Domain         string // DNS suffix of services
	RootNamespace  string
	// RegistryOnly is outboundTrafficPolicy REGISTRY_ONLY.
	RegistryOnly   bool
	ConnectTimeout time.Duration
	// AutoMTLS is enableAutoMtls.
	AutoMTLS bool
	// KeyExchanges is meshMTLS.ecdhCurves: what Envoys use with each other, by
	// Envoy's names, what is preferred coming first; empty leaves it to them.
	KeyExchanges []string
	// Listeners is what MeshConfig sets for the listeners of all proxies.
	Listeners ListenerSettings
	// Networks maps each cluster to the network of its system namespace.
	Networks map[mesh.ClusterID]mesh.NetworkID
}

// ListenerSettings are settings of MeshConfig that count for all listeners.
type ListenerSettings struct {
	// AccessLogFile is accessLogFile, the path at which Envoy logs requests and
	// connections; empty is no log.
	AccessLogFile string
	// AccessLogFormat is accessLogFormat, a text or, with AccessLogJSON, an
	// object of JSON; empty is the default.
	AccessLogFormat string
	AccessLogJSON   bool
	// Tracing is enableTracing.
	Tracing bool
	// DetectionTimeout is protocolDetectionTimeout: how long to wait for the first
	// bytes of a connection; 0 is without end.
	DetectionTimeout time.Duration
}

// CACertificate is a further source of roots, that MeshConfig names.
type CACertificate struct {
	PEM, BundleURL string // one of them
	// TrustDomains are whose roots they are; none means the mesh's own and its
	// aliases.
	TrustDomains []string
}

// TrustBundle is what workloads of the mesh check each other with.
type TrustBundle struct {
	// Roots are PEM texts of one certificate each, sorted.
	Roots []string
}

// NamespaceFacts are the policies of one namespace of the configuration
// cluster and the services in it, oldest policy first.
type NamespaceFacts struct {
	Name     string
	Sidecars []*Sidecar
	PeerAuth []*PeerAuthentication
	// EnvoyFilters by priority, then oldest first.
	EnvoyFilters []*EnvoyFilter
	Services     []*MeshService
}

// Balancing is how the endpoints of a cluster take part in load balancing.
// The zero value is that of a cluster with nothing special.
type Balancing struct {
	// Drained endpoints get load only where no other cluster has healthy ones.
	Drained bool
	// Demoted endpoints get the next lower priority.
	Demoted bool
	// Weight is the share of an endpoint in percent of the usual one, 1 to
	// mesh.MaxWeight; 0 is 100.
	Weight uint32
}
