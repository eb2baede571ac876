package source

import (
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Groups of the APIs, besides those that have kinds with a specification.
const (
	groupTelemetry    = "telemetry.istio.io"
	groupIstioPlugins = "extensions.istio.io"
	groupGatewayXAPI  = "gateway.networking.x-k8s.io"
)

func snapshotKind(kind string) snapshot.Kind { return snapshot.Kind(kind) }

var istioVersions = []string{"v1", "v1beta1", "v1alpha3"}

const noRoute = "no route is made of it"

// apiKinds has every kind of the Istio API and of the Kubernetes Gateway API,
// once. What the sources report and docs/api-support.md come from it.
var apiKinds = []APIKind{
	{
		Group: groupSecurity, Kind: "AuthorizationPolicy", Plural: "authorizationpolicies", Versions: []string{"v1", "v1beta1"},
		Support: NoEffect, Meaning: "it denies and allows nothing, so every request that reaches the workload is let in",
	},
	{
		Group: groupSecurity, Kind: "RequestAuthentication", Plural: "requestauthentications", Versions: []string{"v1", "v1beta1"},
		Support: NoEffect, Meaning: "the tokens of requests are not checked",
	},
	{
		Group: groupSecurity, Kind: "PeerAuthentication", Plural: "peerauthentications", Versions: istioVersions,
		Support: Works, Meaning: "one with a selector in the root namespace selects nothing, as in Istio",
	},
	{
		Group: groupNetworking, Kind: "Sidecar", Plural: "sidecars", Versions: istioVersions,
		Support: Partly, Meaning: "see [its fields](#sidecar)", Fields: sidecarFields,
	},
	{
		Group: groupNetworking, Kind: "Gateway", Plural: "gateways", Versions: istioVersions,
		Support: Partly, Meaning: "east-west gateways alone: see [its fields](#gateway)", Fields: gatewayFields,
	},
	{
		Group: groupNetworking, Kind: "EnvoyFilter", Plural: "envoyfilters", Versions: []string{"v1alpha3"},
		Support: Partly, Meaning: "HTTP filters of sidecars and extension configurations: see [its fields](#envoyfilter)", Fields: envoyFilterFields,
	},
	{
		Group: groupNetworking, Kind: "WorkloadEntry", Plural: "workloadentries", Versions: istioVersions,
		Support: Partly, Meaning: "an endpoint of the Services of Kubernetes that select it, if its address is an IP address; a ServiceEntry does not select it",
	},
	{
		Group: groupNetworking, Kind: "WorkloadGroup", Plural: "workloadgroups", Versions: istioVersions,
		Support: NoEffect, Meaning: "no WorkloadEntry is made of it",
	},
	{
		Group: groupNetworking, Kind: "ServiceEntry", Plural: "serviceentries", Versions: istioVersions,
		Support: NoEffect, Meaning: "its hosts are no services of the mesh, so requests to them leave it as to any unknown host",
	},
	{
		Group: groupNetworking, Kind: "VirtualService", Plural: "virtualservices", Versions: istioVersions,
		Support: NoEffect, Meaning: "requests go to all endpoints of their service, without its routes, timeouts, retries, faults and mirrors",
	},
	{
		Group: groupNetworking, Kind: "DestinationRule", Plural: "destinationrules", Versions: istioVersions,
		Support: NoEffect, Meaning: "there are no subsets, and load balancing, connection limits, outlier detection and TLS are those of a service without one",
	},
	{
		Group: groupNetworking, Kind: "ProxyConfig", Plural: "proxyconfigs", Versions: []string{"v1beta1"},
		Support: NoEffect, Meaning: "an agent takes its settings from its environment variable PROXY_CONFIG alone",
	},
	{
		Group: groupTelemetry, Kind: "Telemetry", Plural: "telemetries", Versions: []string{"v1", "v1alpha1"},
		Support: NoEffect, Meaning: "metrics, traces and access logs stay as they are",
	},
	{
		Group: groupIstioPlugins, Kind: "WasmPlugin", Plural: "wasmplugins", Versions: []string{"v1alpha1"},
		Support: NoEffect, Meaning: "no proxy runs the plugin, nor what it checks",
	},
	{
		Group: groupIstioPlugins, Kind: "TrafficExtension", Plural: "trafficextensions", Versions: []string{"v1alpha1"},
		Support: NoEffect, Meaning: "no proxy runs the extension, nor what it checks",
	},
	{
		Group: groupGatewayAPI, Kind: "Gateway", Plural: "gateways", Versions: []string{"v1", "v1beta1"},
		Support: Partly, Meaning: "with the label `topology.istio.io/network` a way into that network, at `spec.addresses`, on listeners of TLS on port 15443 " +
			"(or on that of the label `networking.istio.io/gatewayPort`) or with the option `gateway.istio.io/listener-protocol: auto-passthrough`; no proxy is started for it",
	},
	{
		Group: groupGatewayAPI, Kind: "GatewayClass", Plural: "gatewayclasses", Versions: []string{"v1", "v1beta1"},
		Support: NoEffect, Meaning: "a Gateway works without its class", Unreported: true,
	},
	{Group: groupGatewayAPI, Kind: "HTTPRoute", Plural: "httproutes", Versions: []string{"v1", "v1beta1"}, Support: NoEffect, Meaning: noRoute},
	{Group: groupGatewayAPI, Kind: "GRPCRoute", Plural: "grpcroutes", Versions: []string{"v1", "v1alpha2"}, Support: NoEffect, Meaning: noRoute},
	{Group: groupGatewayAPI, Kind: "TLSRoute", Plural: "tlsroutes", Versions: []string{"v1", "v1alpha3", "v1alpha2"}, Support: NoEffect, Meaning: noRoute},
	{Group: groupGatewayAPI, Kind: "TCPRoute", Plural: "tcproutes", Versions: []string{"v1", "v1alpha2"}, Support: NoEffect, Meaning: noRoute},
	{Group: groupGatewayAPI, Kind: "UDPRoute", Plural: "udproutes", Versions: []string{"v1", "v1alpha2"}, Support: NoEffect, Meaning: noRoute},
	{
		Group: groupGatewayAPI, Kind: "ListenerSet", Plural: "listenersets", Versions: []string{"v1"},
		Support: NoEffect, Meaning: "no Gateway gets its listeners",
	},
	{
		Group: groupGatewayAPI, Kind: "ReferenceGrant", Plural: "referencegrants", Versions: []string{"v1", "v1beta1", "v1alpha2"},
		Support: NoEffect, Meaning: "there is nothing that it could permit", Unreported: true,
	},
	{
		Group: groupGatewayAPI, Kind: "BackendTLSPolicy", Plural: "backendtlspolicies", Versions: []string{"v1", "v1alpha3"},
		Support: NoEffect, Meaning: "no proxy checks the backend's certificate by it",
	},
	{
		Group: groupGatewayXAPI, Kind: "XBackend", Plural: "xbackends", Versions: []string{"v1alpha1"},
		Support: NoEffect, Meaning: "experimental", Unreported: true,
	},
	{
		Group: groupGatewayXAPI, Kind: "XBackendTrafficPolicy", Plural: "xbackendtrafficpolicies", Versions: []string{"v1alpha1"},
		Support: NoEffect, Meaning: "experimental", Unreported: true,
	},
	{
		Group: groupGatewayXAPI, Kind: "XMesh", Plural: "xmeshes", Versions: []string{"v1alpha1"},
		Support: NoEffect, Meaning: "experimental", Unreported: true,
	},
}

var sidecarFields = []APIField{
	{Path: "workloadSelector", Support: Works},
	{Path: "ingress", Support: Partly, Meaning: "`port`, `bind` and `defaultEndpoint`"},
	{Path: "ingress.captureMode", Support: NoEffect, Meaning: "whether connections are captured is a setting of the proxy"},
	{Path: "ingress.tls", Support: NoEffect, Meaning: "the port takes what PeerAuthentication says"},
	{Path: "ingress.connectionPool", Support: NoEffect, Meaning: "connections and requests have no limit"},
	{Path: "egress", Support: Partly, Meaning: "`hosts`, `bind`, `captureMode` and ports of HTTP"},
	{Path: "egress.port", Support: Partly, Meaning: "only a port of HTTP gets a listener", lacks: func(value proto.Message) bool {
		port, _ := value.(*networkingv1alpha3.SidecarPort)
		p, known := mesh.ParseProtocol(port.GetProtocol())
		return !known || !p.IsHTTP()
	}},
	{Path: "inboundConnectionPool", Support: NoEffect, Meaning: "connections and requests have no limit"},
	{Path: "outboundTrafficPolicy", Support: Partly, Meaning: "`mode`"},
	{Path: "outboundTrafficPolicy.egressProxy", Support: NoEffect, Meaning: "traffic to unknown hosts goes to them directly"},
}

var gatewayFields = []APIField{
	{Path: "selector", Support: Works},
	{Path: "servers", Support: Partly, Meaning: "only servers with `tls.mode: AUTO_PASSTHROUGH` are opened, on `port` and `bind`, for `hosts`", lacks: func(value proto.Message) bool {
		server, _ := value.(*networkingv1alpha3.Server)
		return server.GetTls().GetMode() != networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH
	}},
	{Path: "servers.defaultEndpoint", Support: NoEffect, Meaning: "connections go where their server name says"},
}

var envoyFilterFields = []APIField{
	{Path: "workloadSelector", Support: Works},
	{Path: "targetRefs", Support: NoEffect, Meaning: "an object with it has none at all"},
	{Path: "priority", Support: Works},
	{Path: "configPatches", Support: Partly, Meaning: "the patches of [configuration-directory.md](configuration-directory.md#envoyfilter); each of the others is reported"},
}
