package snapshot

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Mesh holds the facts that apply to the whole mesh, most of them from MeshConfig.
type Mesh struct {
	// LocalCluster is the cluster of the control plane. Configuration objects and
	// MeshConfig count only there.
	LocalCluster mesh.ClusterID
	TrustDomain  string
	Aliases      []string // trustDomainAliases, sorted
	// CACertificates is caCertificates: further roots of the mesh.
	CACertificates []CACertificate
	Domain         string // DNS suffix of services
	// RootNamespace is the namespace whose policies apply to all namespaces.
	RootNamespace string
	// NetworkRanges holds the address ranges of networks in meshNetworks, the longest prefix
	// first.
	NetworkRanges []NetworkRange
	// RegistryOnly reports whether outboundTrafficPolicy is REGISTRY_ONLY: proxies
	// refuse connections to unknown destinations.
	RegistryOnly bool
	// InboundLocalhost reports whether inboundTrafficPolicy is LOCALHOST: proxies pass
	// calls on to the loopback address.
	InboundLocalhost bool
	// OutboundPort is proxyListenPort, and InboundPort proxyInboundListenPort.
	OutboundPort, InboundPort uint32
	// HTTPProxyPort is proxyHttpPort: where sidecars are HTTP proxies for their applications.
	// 0 means nowhere.
	HTTPProxyPort uint32
	// OutboundStats is outboundClusterStatName, and InboundStats inboundClusterStatName.
	OutboundStats, InboundStats string
	ConnectTimeout              time.Duration
	// DNSRefresh is the interval between resolutions of a name without a time to live.
	DNSRefresh time.Duration
	// AutoMTLS is enableAutoMtls: proxies use mTLS where the endpoint supports it.
	AutoMTLS bool
	// MeshTLS is meshMTLS, for mTLS between Envoys of the mesh. TLSDefaults is tlsDefaults,
	// for other TLS.
	MeshTLS, TLSDefaults TLSLimits
	// Retries is defaultHttpRetryPolicy.
	Retries RetryPolicy
	// KeepAlive is tcpKeepalive, and H2Upgrade whether h2UpgradePolicy is UPGRADE.
	KeepAlive KeepAlive
	H2Upgrade bool
	// DefaultPolicy is defaultTrafficPolicy, or nil. It keeps its address until it changes.
	DefaultPolicy *networkingv1alpha3.TrafficPolicy
	// LocalityLB is localityLbSetting.
	LocalityLB *networkingv1alpha3.LocalityLoadBalancerSetting
	// Listeners holds the settings of all listeners, without access logs.
	Listeners ListenerSettings
	// AccessLog is the access log of workloads without a Telemetry. Without a file there
	// is none.
	AccessLog AccessLog
	// LogProviders holds the access logs that a Telemetry can name, by name in lower case.
	// LogDefaults is defaultProviders.accessLogging.
	LogProviders map[string]AccessLog
	LogDefaults  []string
	// MetricProviders holds the providers of metrics that a Telemetry can name, in lower case.
	// MetricDefaults is defaultProviders.metrics.
	MetricProviders map[string]bool
	MetricDefaults  []string
	// Tracers holds the collectors of spans that a Telemetry can name, by name in lower case.
	// TraceDefaults is defaultProviders.tracing.
	Tracers map[string]Collector
	// Authorizers holds the providers of external authorization by name.
	Authorizers   map[string]Collector
	TraceDefaults []string
	// Topology is gatewayTopology of defaultConfig, for gateways that report none.
	Topology Topology
	// IstioTags reports whether spans have tags with the workload, unless a Telemetry decides.
	IstioTags bool
}

// HasMetricProvider reports whether a provider of metrics has one of the names.
func (m *Mesh) HasMetricProvider(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return m.MetricProviders[strings.ToLower(name)] })
}

// NetworkRange is a range of addresses in a network.
type NetworkRange struct {
	Prefix  netip.Prefix
	Network mesh.NetworkID
}

// NetworkAt returns the network of the first range with an address, or "".
func NetworkAt(ranges []NetworkRange, addr netip.Addr) mesh.NetworkID {
	for _, r := range ranges {
		if r.Prefix.Contains(addr) {
			return r.Network
		}
	}
	return ""
}

// TLSLimits limits what TLS may use. It is comparable.
type TLSLimits struct {
	// MinVersion is a version of package crypto/tls; 0 means the default.
	MinVersion uint16
	// Curves and Ciphers hold Envoy's names, joined by colons, the preferred one first.
	// Empty means Envoy's defaults. Ciphers are only for TLS 1.2.
	Curves  string
	Ciphers string
}

// KeepAlive sets how proxies probe idle TCP connections. Zero fields mean the settings of
// the operating system.
type KeepAlive struct {
	On             bool
	Probes         uint32
	Time, Interval time.Duration
}

// AccessLog is a file or a collector to which Envoy logs requests and connections.
type AccessLog struct {
	File string // path; empty for a collector
	// Collector takes the logs by OTLP, through a cluster of its service at Host.
	Collector     Collector
	Cluster, Host string
	LogName       string
	Labels        string // attributes of a log by OTLP: a JSON object
	// Format is the line of a request or, with JSON, an object. Empty means Istio's default.
	Format string
	JSON   bool
	// OmitEmpty leaves out values that a request does not have.
	OmitEmpty bool
	// Filter is the CEL expression that selects the requests. Empty means all.
	Filter string
}

// ListenerSettings holds settings that apply to all listeners of a direction. It is
// comparable.
type ListenerSettings struct {
	// NoListenerLog is disableEnvoyListenerLog: connections without a matching filter
	// chain are not logged.
	NoListenerLog bool
	// Paths is pathNormalization.
	Paths PathNormalization
	// Tracing sets how requests are traced.
	Tracing Tracing
	// Stats is Mesh.OutboundStats, for outbound listeners.
	Stats string
	// DetectionTimeout is protocolDetectionTimeout: how long a listener waits for the
	// first bytes of a connection. Zero means no limit.
	DetectionTimeout time.Duration
}

// PathNormalization sets how proxies normalize the paths of requests.
type PathNormalization uint8

// The values of PathNormalization. Each does what those before it do.
const (
	NormalizePaths        PathNormalization = iota // "." and "..", as in RFC 3986
	MergeSlashes                                   // and repeated slashes
	DecodeAndMergeSlashes                          // and escaped slashes
	KeepPaths             PathNormalization = 255  // nothing
)

// CACertificate is a source of further roots.
type CACertificate struct {
	PEM, BundleURL string // one of them is set
	// TrustDomains holds the trust domains of the roots. Empty means the mesh's own
	// trust domain and its aliases.
	TrustDomains []string
}

// TrustBundle holds the roots with which workloads of the mesh verify each other.
type TrustBundle struct {
	// Roots holds one PEM certificate per element, sorted.
	Roots []string
}
