package xdswire

import "slices"

// Type URLs of the resources that the control plane serves.
const (
	ClusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	EndpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	ListenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	// VirtualHostType is the type of virtual hosts that are not in a route configuration.
	VirtualHostType = "type.googleapis.com/envoy.config.route.v3.VirtualHost"
	SecretType      = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
	ExtensionType   = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	NameTableType   = "type.googleapis.com/istio.networking.nds.v1.NameTable"
	// ProxyConfigType carries the roots of the mesh.
	ProxyConfigType = "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig"
	// BootstrapType carries patches of the bootstrap.
	BootstrapType = "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap"
)

// HealthType marks requests in which agents report the health of their workload, with an
// error detail if it is unhealthy. They are ignored before the first other request and
// get no answer.
const HealthType = "type.googleapis.com/istio.v1.HealthInformation"

// DebugType is the type of status pages. Single pages have types that start with it and
// a slash.
const DebugType = "istio.io/debug"

// PushOrder lists the types in the order in which changes are sent: a type comes before
// types that refer to it.
var PushOrder = [...]string{ClusterType, EndpointType, ListenerType, RouteType, VirtualHostType, SecretType, ExtensionType, NameTableType, ProxyConfigType, BootstrapType}

var shortTypes = [len(PushOrder)]string{"CDS", "EDS", "LDS", "RDS", "VHDS", "SDS", "ECDS", "NDS", "PCDS", "BDS"}

// ShortType returns the usual short name of a type, such as CDS. It returns the URL of
// a type that is not served.
func ShortType(typeURL string) string {
	if i := slices.Index(PushOrder[:], typeURL); i >= 0 {
		return shortTypes[i]
	}
	return typeURL
}
