package xdswire

// Type URLs of the resources that the control plane serves.
const (
	ClusterType   = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType  = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType  = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType     = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	SecretType    = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	ExtensionType = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	NameTableType = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	// ProxyConfigType carries the roots of the mesh.
	ProxyConfigType = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
)

// HealthType marks messages in which agents report the health of their workload, with
// an error when it is bad. They count after the first request alone, and are not
// answered.
const HealthType = "type.googleapis.com/istio.v1.HealthInformation"

// DebugType is that of status pages; types that begin with it and a slash are of
// single ones.
const DebugType = "istio.io/debug"

// PushOrder is the order in which types are sent when several changed, so
// that what is referred to comes before what refers to it.
var PushOrder = [...]string{ClusterType, EndpointType, ListenerType, RouteType, SecretType, ExtensionType, NameTableType, ProxyConfigType}

// ShortType is the name that people use for a type: CDS, EDS …; a type that
// is not served keeps its URL.
func ShortType(typeURL string) string {
	switch typeURL {
	case ClusterType:
		return "CDS"
	case EndpointType:
		return "EDS"
	case ListenerType:
		return "LDS"
	case RouteType:
		return "RDS"
	case SecretType:
		return "SDS"
	case ExtensionType:
		return "ECDS"
	case NameTableType:
		return "NDS"
	case ProxyConfigType:
		return "PCDS"
	}
	return typeURL
}
