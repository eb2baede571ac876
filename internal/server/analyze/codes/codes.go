// Package codes lists the kinds of findings of package analyze, with their codes, levels and meanings.
package codes

import (
	"slices"
	"strings"
)

// Code names a kind of finding. Codes are stable: scripts and annotations name them. The
// codes IST… are those of istioctl analyze, where the meaning is the same.
type Code string

// The codes. Kinds describes each.
const (
	Deprecated                                      Code = "IST0002"
	ReferencedResourceNotFound                      Code = "IST0101"
	NamespaceNotInjected                            Code = "IST0102"
	PodMissingProxy                                 Code = "IST0103"
	IstioProxyImageMismatch                         Code = "IST0105"
	SchemaValidationError                           Code = "IST0106"
	MisplacedAnnotation                             Code = "IST0107"
	UnknownAnnotation                               Code = "IST0108"
	ConflictingMeshGatewayVirtualServiceHosts       Code = "IST0109"
	ConflictingSidecarWorkloadSelectors             Code = "IST0110"
	MultipleSidecarsWithoutWorkloadSelectors        Code = "IST0111"
	VirtualServiceDestinationPortSelectorRequired   Code = "IST0112"
	DeploymentAssociatedToMultipleServices          Code = "IST0116"
	PortNameIsNotUnderNamingConvention              Code = "IST0118"
	NamespaceMultipleInjectionLabels                Code = "IST0123"
	UnknownMeshNetworksServiceRegistry              Code = "IST0126"
	NoMatchingWorkloadsFound                        Code = "IST0127"
	NoServerCertificateVerificationDestinationLevel Code = "IST0128"
	NoServerCertificateVerificationPortLevel        Code = "IST0129"
	VirtualServiceUnreachableRule                   Code = "IST0130"
	VirtualServiceIneffectiveMatch                  Code = "IST0131"
	VirtualServiceHostNotFoundInGateway             Code = "IST0132"
	ServiceEntryAddressesRequired                   Code = "IST0134"
	GatewayDuplicateCertificate                     Code = "IST0138"
	IngressRouteRulesNotAffected                    Code = "IST0140"
	ConflictingGateways                             Code = "IST0145"
	JwtClaimBasedRoutingWithoutRequestAuthN         Code = "IST0149"
	EnvoyFilterUsesRelativeOperation                Code = "IST0151"
	EnvoyFilterUsesReplaceOperationIncorrectly      Code = "IST0152"
	EnvoyFilterUsesAddOperationIncorrectly          Code = "IST0153"
	EnvoyFilterUsesRemoveOperationIncorrectly       Code = "IST0154"
	InvalidTelemetryProvider                        Code = "IST0157"
	ConflictingTelemetryWorkloadSelectors           Code = "IST0159"
	MultipleTelemetriesWithoutWorkloadSelectors     Code = "IST0160"
	InvalidGatewayCredential                        Code = "IST0161"
	GatewayPortNotDefinedOnService                  Code = "IST0162"
	MultiClusterInconsistentService                 Code = "IST0170"
	DestinationRuleSubsetNotSelectPods              Code = "IST0173"
	UnknownDestinationRuleHost                      Code = "IST0174"
	ConflictingServiceEntryProtocol                 Code = "IST0177"

	NoEffect                         Code = "MSH0101"
	RepeatedObject                   Code = "MSH0102"
	Unreadable                       Code = "MSH0103"
	SharedHost                       Code = "MSH0104"
	SharedAddress                    Code = "MSH0105"
	RepeatedExtension                Code = "MSH0106"
	UnreachableNetwork               Code = "MSH0107"
	UnusableDelegate                 Code = "MSH0108"
	TLSModeConflict                  Code = "MSH0109"
	ShadowedVirtualService           Code = "MSH0110"
	UnknownNamespace                 Code = "MSH0111"
	GatewayServerWithoutRoutes       Code = "MSH0112"
	HostWithoutService               Code = "MSH0113"
	ConflictingDestinationRules      Code = "MSH0114"
	SidecarHostWithoutService        Code = "MSH0115"
	ServiceWithoutEndpoints          Code = "MSH0116"
	ConflictingPeerAuthentications   Code = "MSH0117"
	ConflictingServiceEntryAddresses Code = "MSH0118"
	HTTPFieldOnTCPPort               Code = "MSH0119"
	RouteWithoutPort                 Code = "MSH0120"
	EmptyListPermitsAll              Code = "MSH0121"
	PrivateKeyInKeySet               Code = "MSH0122"
	TCPPortOfHTTPProvider            Code = "MSH0123"
	KeySetNotFetched                 Code = "MSH0124"
	UnknownTokenIssuer               Code = "MSH0125"
	PlaintextToStrict                Code = "MSH0126"
	WrongTargetPort                  Code = "MSH0127"
	CertificateForOtherHost          Code = "MSH0128"
	UnknownRevision                  Code = "MSH0130"
	RevisionWithoutControlPlane      Code = "MSH0131"
	RemovedRevision                  Code = "MSH0132"
	InjectionRefused                 Code = "MSH0133"
	ProxyImageNotPulled              Code = "MSH0134"
	SubsetMissingInCluster           Code = "MSH0135"
	DestinationRuleDiffers           Code = "MSH0136"
	GatewayDoesNotPassOn             Code = "MSH0137"
	SecurityDiffers                  Code = "MSH0138"
	TrustDomainDiffers               Code = "MSH0139"
	MeshConfigDiffers                Code = "MSH0140"
	WrongNetworkLabel                Code = "MSH0141"
	ClusterNotLinked                 Code = "MSH0142"
	RoutesDiffer                     Code = "MSH0143"
)

// Level is the severity of a finding, in istioctl's words.
type Level string

// The levels, the most severe one first.
const (
	Error   Level = "Error"
	Warning Level = "Warning"
	Info    Level = "Info"
)

// Levels lists the levels, the most severe one first.
func Levels() []Level { return []Level{Error, Warning, Info} }

// AtLeast reports whether a level is as severe as another one.
func (l Level) AtLeast(other Level) bool {
	return slices.Index(Levels(), l) <= slices.Index(Levels(), other)
}

// Kind describes the findings of a code.
type Kind struct {
	Code  Code
	Name  string
	Level Level
	// Cause and Fix are sentences for docs/analyze.md, in Markdown.
	Cause, Fix string
}

// Documentation returns the place of the code in the documentation.
func (c Code) Documentation() string { return "docs/analyze.md#" + strings.ToLower(string(c)) }

// KindOf returns the description of a code. It returns the zero Kind for an unknown one.
func KindOf(c Code) Kind {
	if i := slices.IndexFunc(kinds, func(k Kind) bool { return strings.EqualFold(string(k.Code), string(c)) }); i >= 0 {
		return kinds[i]
	}
	return Kind{}
}

// Kinds returns the descriptions of all codes, in their order.
func Kinds() []Kind { return slices.Clone(kinds) }

var kinds = []Kind{
	{
		Deprecated, "Deprecated", Warning,
		"An object has a field, or a value of a field, that Istio's API marks as deprecated. It still has its effect.",
		"Use what the message names.",
	},
	{
		ReferencedResourceNotFound, "ReferencedResourceNotFound", Error,
		"An object refers to another object that does not exist. A VirtualService may refer to a Gateway, a delegate, or a destination with its port and subset. A Gateway or a DestinationRule may refer to a Secret, a Telemetry to a provider, and an AuthorizationPolicy to a provider whose service and port exist, and to namespaces as sources. If a source names a service account that no workload of its namespace has, this is a warning if another service account there has a similar name, and a remark if none has. The command then must have read all clusters of the mesh from their APIs. A Gateway, a Sidecar or a Telemetry may select workloads. A destination that is not exported to a namespace does not exist in this namespace.",
		"Correct the name, or create the missing object.",
	},
	{
		NamespaceNotInjected, "NamespaceNotInjected", Warning,
		"The label `istio-injection` of a namespace has another value than `enabled` or `disabled`, so no pod of the namespace is injected. Or a namespace has no label for injection, although its pods take part in the traffic of the mesh: policies apply to them, an AuthorizationPolicy or a route names them as callers, or other pods of their Service have a proxy. It is only a remark if the namespace has VirtualServices or DestinationRules for its Services, which may be for clients elsewhere.",
		"Set the label to `enabled`, and restart the pods. If they need no proxy, set it to `disabled`.",
	},
	{
		PodMissingProxy, "PodMissingProxy", Warning,
		"A pod has no proxy, although its labels or those of its namespace ask for one. The pod may be older than the label, its label or annotation `sidecar.istio.io/inject` may have a wrong value, or the namespace has no label, so that the annotation has no effect. Pods in the network of their node and pods with `sidecar.istio.io/inject: \"false\"` need none.",
		"Restart the workload, or correct the label.",
	},
	{
		IstioProxyImageMismatch, "IstioProxyImageMismatch", Warning,
		"The proxy of a pod has another version than the control plane of its revision. The pod was created before the upgrade of the control plane. Or the proxy is of another revision than the one that the labels of the pod and its namespace choose.",
		"Restart the workload.",
	},
	{
		SchemaValidationError, "SchemaValidationError", Error,
		"An object is invalid. The control plane keeps its last good version, if it has one.",
		"Correct the field that the message names.",
	},
	{
		MisplacedAnnotation, "MisplacedAnnotation", Warning,
		"An object has an annotation that Istio defines for other kinds of objects. An annotation of pods has no effect on their Deployment.",
		"Move the annotation to an object of its kind, or remove it.",
	},
	{
		UnknownAnnotation, "UnknownAnnotation", Warning,
		"An annotation has a name in the domain `istio.io` that Istio does not define.",
		"Correct the name.",
	},
	{
		ConflictingMeshGatewayVirtualServiceHosts, "ConflictingMeshGatewayVirtualServiceHosts", Error,
		"Two VirtualServices for sidecars have the same host. The first one has a route for all ports and clients, or the host is a wildcard, so sidecars [use only its routes](traffic.md#other-clients-other-routes).",
		"Put the routes of the host into one VirtualService.",
	},
	{
		ConflictingSidecarWorkloadSelectors, "ConflictingSidecarWorkloadSelectors", Error,
		"Two Sidecars select the same workload. The proxy of the workload uses the older Sidecar.",
		"Narrow one of the selectors.",
	},
	{
		MultipleSidecarsWithoutWorkloadSelectors, "MultipleSidecarsWithoutWorkloadSelectors", Error,
		"Two Sidecars of a namespace have no selector. Proxies use the older Sidecar.",
		"Delete one of them, or give it a selector.",
	},
	{
		VirtualServiceDestinationPortSelectorRequired, "VirtualServiceDestinationPortSelectorRequired", Error,
		"A destination names no port, and its service has several ports. Requests go to the port to which the client sent them, if the service has this port.",
		"Name the port.",
	},
	{
		DeploymentAssociatedToMultipleServices, "DeploymentAssociatedToMultipleServices", Warning,
		"Two Services send different protocols to one port of a workload. The proxy of the workload expects the protocol of only one of the Services.",
		"Give both ports the same protocol, by name or `appProtocol`.",
	},
	{
		PortNameIsNotUnderNamingConvention, "PortNameIsNotUnderNamingConvention", Info,
		"The name of a port does not begin with a protocol, and the port has no `appProtocol` that does. Proxies must detect HTTP, which is slower. If the server sends first, proxies still wait for bytes of the client. A name such as `htpp`, which is probably a mistake, is a warning.",
		"Name the port after its protocol, as in `http-web`, or set `appProtocol`.",
	},
	{
		NamespaceMultipleInjectionLabels, "NamespaceMultipleInjectionLabels", Warning,
		"A namespace has both labels `istio-injection` and `istio.io/rev`. Only `istio-injection` has an effect: the control plane of the revision `default` injects the pods, not the control plane of the other label.",
		"Remove one of the labels.",
	},
	{
		UnknownMeshNetworksServiceRegistry, "UnknownMeshNetworksServiceRegistry", Error,
		"`meshNetworks` names a cluster that is not part of the mesh. The network gets no endpoints from this cluster.",
		"Correct the name of the cluster, or add the cluster to the mesh.",
	},
	{
		NoMatchingWorkloadsFound, "NoMatchingWorkloadsFound", Warning,
		"The selector of a PeerAuthentication, a RequestAuthentication, an EnvoyFilter, a DestinationRule or a ServiceEntry selects no workload. meshctl does not check selectors in a mesh without any pod, such as a directory that contains only configuration.",
		"Correct the labels.",
	},
	{
		NoServerCertificateVerificationDestinationLevel, "NoServerCertificateVerificationDestinationLevel", Warning,
		"With `insecureSkipVerify`, clients accept every server certificate. Without this field, clients verify the certificate with `caCertificates` or, if `caCertificates` is empty, with the roots of the system.",
		"Remove `insecureSkipVerify`, and set `caCertificates` or `credentialName` if the server has a private CA.",
	},
	{
		NoServerCertificateVerificationPortLevel, "NoServerCertificateVerificationPortLevel", Warning,
		"The same as [IST0128](#ist0128), but for the settings of one port.",
		"Remove `insecureSkipVerify`.",
	},
	{
		VirtualServiceUnreachableRule, "VirtualServiceUnreachableRule", Warning,
		"An earlier route of the VirtualService matches all requests that a later route matches.",
		"Put the more specific route first, or delete the later route.",
	},
	{
		VirtualServiceIneffectiveMatch, "VirtualServiceIneffectiveMatch", Info,
		"A later route has several matches. An earlier route takes all requests that one of these matches selects.",
		"Delete the match, or put its route first.",
	},
	{
		VirtualServiceHostNotFoundInGateway, "VirtualServiceHostNotFoundInGateway", Warning,
		"A VirtualService names a Gateway, but no server of the Gateway has a host of the VirtualService, or every server with such a host excludes the namespace of the VirtualService. `NAMESPACE/HOST` in a server means only VirtualServices of this namespace.",
		"Add the host to a server, or remove the Gateway from the VirtualService.",
	},
	{
		ServiceEntryAddressesRequired, "ServiceEntryAddressesRequired", Warning,
		"A ServiceEntry has a TCP port but no address, and the control plane allocates none. Proxies cannot recognize the connections to the host. If a connection to this port has an unknown destination address, proxies therefore send it to the host of the ServiceEntry.",
		"Set `addresses`, or a `resolution` for which the control plane allocates an address.",
	},
	{
		GatewayDuplicateCertificate, "GatewayDuplicateCertificate", Warning,
		"Two Gateways of the same workloads use the same certificate at one address and port. A browser reuses a connection for all hosts of the certificate. For hosts that only the other Gateway has, the browser gets status 404.",
		"Put the servers into one Gateway, or use a separate certificate for each Gateway.",
	},
	{
		IngressRouteRulesNotAffected, "IngressRouteRulesNotAffected", Warning,
		"A VirtualService of a Gateway sends requests to a service, but names no subset. The routes to the subsets of this service are in a VirtualService for sidecars. A gateway does not use routes for sidecars.",
		"Name the subset in the VirtualService of the Gateway.",
	},
	{
		ConflictingGateways, "ConflictingGateways", Error,
		"Two servers of Gateways cannot share a port, because they have the same host or different protocols. Proxies open only the older server.",
		"Give the servers different hosts or ports, or delete one of them.",
	},
	{
		JwtClaimBasedRoutingWithoutRequestAuthN, "JwtClaimBasedRoutingWithoutRequestAuthN", Error,
		"A route matches a claim of a token, but no RequestAuthentication applies to a workload of the Gateway. Without a RequestAuthentication, no request has claims. If no workload is known, the selectors decide.",
		"Add a RequestAuthentication that selects the gateway.",
	},
	{
		EnvoyFilterUsesRelativeOperation, "EnvoyFilterUsesRelativeOperation", Warning,
		"A patch refers to a filter that another EnvoyFilter of the same priority adds: it changes, replaces or removes the filter, or inserts a filter next to it. Proxies apply the older EnvoyFilter first. If the EnvoyFilter with the patch is older, the patch has no effect.",
		"Give the EnvoyFilter that adds the filter a lower `priority`.",
	},
	{
		EnvoyFilterUsesReplaceOperationIncorrectly, "EnvoyFilterUsesReplaceOperationIncorrectly", Error,
		"A patch applies `REPLACE` to a part that it cannot replace, such as a cluster. The patch has no effect.",
		"Use `MERGE`, or `MERGE_AND_REPLACE_LIST`.",
	},
	{
		EnvoyFilterUsesAddOperationIncorrectly, "EnvoyFilterUsesAddOperationIncorrectly", Error,
		"A patch applies `ADD` to a `ROUTE_CONFIGURATION`, which is not possible. The patch has no effect.",
		"Use `MERGE`, or add a `VIRTUAL_HOST` or an `HTTP_ROUTE`.",
	},
	{
		EnvoyFilterUsesRemoveOperationIncorrectly, "EnvoyFilterUsesRemoveOperationIncorrectly", Error,
		"A patch applies `REMOVE` to a `ROUTE_CONFIGURATION` or an `EXTENSION_CONFIG`, which is not possible. The patch has no effect.",
		"Remove a `VIRTUAL_HOST` or an `HTTP_ROUTE`, or the filter that uses the extension.",
	},
	{
		InvalidTelemetryProvider, "InvalidTelemetryProvider", Warning,
		"A Telemetry configures access logs or metrics without a provider, and neither MeshConfig nor a Telemetry with a wider scope names a provider. Without a provider, `disabled` does not turn off the log of `accessLogFile`, either.",
		"Name the `providers`, or set `defaultProviders.accessLogging` or `defaultProviders.metrics` in MeshConfig.",
	},
	{
		ConflictingTelemetryWorkloadSelectors, "ConflictingTelemetryWorkloadSelectors", Error,
		"Two Telemetries select the same workload. The proxy of the workload uses the older Telemetry.",
		"Narrow one of the selectors.",
	},
	{
		MultipleTelemetriesWithoutWorkloadSelectors, "MultipleTelemetriesWithoutWorkloadSelectors", Error,
		"Two Telemetries of a namespace have no selector. Proxies use the older Telemetry.",
		"Delete one of them, or give it a selector.",
	},
	{
		InvalidGatewayCredential, "InvalidGatewayCredential", Error,
		"The Secret of a Gateway has no certificate with its key, has a key of another certificate or another type than `kubernetes.io/tls` and `Opaque`, or has no CA certificates although clients must present certificates. Or the certificate has expired or is not valid yet. If it expires within 14 days, and within a fifth of its life, this is a warning. Or the service account of the gateway may not list the Secrets of its namespace, so the control plane gives it none.",
		"Put the certificate and its key into `tls.crt` and `tls.key`, and CA certificates into `ca.crt`. Grant the account `get`, `list` and `watch` on Secrets.",
	},
	{
		GatewayPortNotDefinedOnService, "GatewayPortNotDefinedOnService", Warning,
		"A server of a Gateway has a port that no Service of the gateway's pods has. Clients do not reach the server through these Services.",
		"Add the port to the Service, or change the port of the server.",
	},
	{
		MultiClusterInconsistentService, "MultiClusterInconsistentService", Warning,
		"Services with the same name differ between clusters. Clients use the definition in their own cluster for the endpoints of all clusters.",
		"Apply the same Service in all clusters.",
	},
	{
		DestinationRuleSubsetNotSelectPods, "DestinationRuleSubsetNotSelectPods", Error,
		"A service has endpoints or pods, but none of them has the labels of a subset. Requests to the subset get status 503. If no VirtualService routes to the subset, this is a remark. A label of the place, such as the region, may have any value if the place is not known.",
		"Correct the labels, or delete the subset.",
	},
	{
		UnknownDestinationRuleHost, "UnknownDestinationRuleHost", Warning,
		"No service has the host of a DestinationRule. A short name means a service in the namespace of the rule.",
		"Correct the host, or write it with its namespace.",
	},
	{
		ConflictingServiceEntryProtocol, "ConflictingServiceEntryProtocol", Warning,
		"Two ServiceEntries give a port of the same host different protocols. Proxies use only one of these protocols.",
		"Define the host once.",
	},
	{
		NoEffect, "NoEffect", Warning,
		"An object, or a field, has no effect. [api-support.md](api-support.md) lists the support of every field.",
		"Remove the object or the field, or suppress the finding if another program uses it.",
	},
	{
		RepeatedObject, "RepeatedObject", Warning,
		"A directory has two objects of the same name. meshctl uses the first one.",
		"Delete one of them.",
	},
	{
		Unreadable, "Unreadable", Error,
		"A file, or a part of a cluster, cannot be read, or exceeds a limit.",
		"Do what the message asks for.",
	},
	{
		SharedHost, "SharedHost", Warning,
		"Several objects define the same host. Proxies use the first of these that exists: the Service, the ServiceEntry of their own namespace, the oldest ServiceEntry.",
		"Give one of the objects another host, or export each object only to its own namespace.",
	},
	{
		SharedAddress, "SharedAddress", Warning,
		"Two Services have the same address, because the address ranges of clusters overlap. Calls to the address reach only one of the Services.",
		"Give the clusters separate ranges, or call the service by its name, over HTTP.",
	},
	{
		RepeatedExtension, "RepeatedExtension", Warning,
		"Two EnvoyFilters for the same proxies have an extension of the same name. Proxies use the extension of the first EnvoyFilter.",
		"Rename the extension.",
	},
	{
		UnreachableNetwork, "UnreachableNetwork", Warning,
		"A network has endpoints but no usable gateway. Proxies in other networks get no endpoint of this network.",
		"Label the Service of the network's east-west gateway, as in [multicluster.md](multicluster.md).",
	},
	{
		UnusableDelegate, "UnusableDelegate", Error,
		"A VirtualService delegates to a VirtualService that has hosts, that is not exported to the namespace of the delegating VirtualService, or whose routes match requests that the delegating route does not match. Proxies do not get the route.",
		"Correct the delegate as the message states.",
	},
	{
		TLSModeConflict, "TLSModeConflict", Error,
		"A DestinationRule makes clients use a TLS mode that the endpoints refuse. Clients use plaintext or other TLS although a PeerAuthentication requires mTLS of the mesh, or they use mTLS of the mesh although the endpoints have no proxy.",
		"Use `ISTIO_MUTUAL`, or remove the mode so that clients use what each endpoint accepts.",
	},
	{
		ShadowedVirtualService, "ShadowedVirtualService", Warning,
		"Two VirtualServices of the same Gateway and host have a route for all requests. A gateway uses only the route of the older VirtualService.",
		"Delete one of the two routes, or give it a condition.",
	},
	{
		UnknownNamespace, "UnknownNamespace", Warning,
		"An object is exported to a namespace that does not exist.",
		"Correct the name of the namespace.",
	},
	{
		GatewayServerWithoutRoutes, "GatewayServerWithoutRoutes", Warning,
		"No VirtualService routes the calls to a server of a Gateway.",
		"Add a VirtualService with the host and the Gateway, or delete the server.",
	},
	{
		HostWithoutService, "HostWithoutService", Info,
		"A VirtualService for sidecars has a host that no service has. A VirtualService does not make the name resolvable, and its TCP and TLS routes apply only to ports of services.",
		"Correct the host, or add a ServiceEntry for it.",
	},
	{
		ConflictingDestinationRules, "ConflictingDestinationRules", Warning,
		"Two DestinationRules of a namespace are for the same host. Clients use the policy of the older DestinationRule. Of two subsets with the same name, they use the subset of the older rule.",
		"Put the settings of the host into one DestinationRule.",
	},
	{
		SidecarHostWithoutService, "SidecarHostWithoutService", Warning,
		"A host in `egress` of a Sidecar matches no service.",
		"Correct the host: `<namespace>/<host>`, with the full name of the service.",
	},
	{
		ServiceWithoutEndpoints, "ServiceWithoutEndpoints", Warning,
		"The selector of a Service selects no workload in any cluster.",
		"Correct the selector, or start the workload.",
	},
	{
		ConflictingPeerAuthentications, "ConflictingPeerAuthentications", Warning,
		"Two PeerAuthentications are for the same workloads. Proxies use the older PeerAuthentication.",
		"Delete one of them, or narrow its selector.",
	},
	{
		ConflictingServiceEntryAddresses, "ConflictingServiceEntryAddresses", Warning,
		"Two ServiceEntries have the same non-HTTP port, and have the same addresses or no addresses. Proxies send all connections to the older ServiceEntry. Or one ServiceEntry has several hosts that proxies resolve: all connections go to the first host. Or the port of one of the ServiceEntries has HTTP: all connections to the address go to the other one. Or the address is that of a pod, which a headless Service of another namespace has with this port.",
		"Give each ServiceEntry its own addresses or port, or use the protocol TLS, so that proxies distinguish them by server name.",
	},
	{
		HTTPFieldOnTCPPort, "HTTPFieldOnTCPPort", Warning,
		"A rule of an AuthorizationPolicy has an HTTP field, such as `methods`, and applies to a port without HTTP. On such a port an `ALLOW` rule matches nothing, and a `DENY` rule ignores the field. It is an error if no other rule allows connections to the port, so that all of them are denied.",
		"Limit the rule to HTTP ports with `ports`, or declare the protocol HTTP for the port.",
	},
	{
		RouteWithoutPort, "RouteWithoutPort", Warning,
		"A match in `http`, `tcp` or `tls` of a VirtualService for sidecars names a port, but no host of the VirtualService has this port with a protocol for the match. Or the VirtualService has `tcp` or `tls` routes, but all ports of its hosts have HTTP, or `http` routes, but no port has HTTP: a port without HTTP has a name that begins with another protocol, such as `tcp-web`. The match or the routes never apply.",
		"Correct the port or its protocol, or use the routes of the protocol.",
	},
	{
		EmptyListPermitsAll, "EmptyListPermitsAll", Warning,
		"A rule of an `ALLOW` policy has an empty list, such as `from: []`. It permits everything, like an absent list. A template that had no values may have left the list.",
		"Remove the rule if it should permit nothing, or the list if it should permit everything.",
	},
	{
		PrivateKeyInKeySet, "PrivateKeyInKeySet", Warning,
		"The `jwks` of a RequestAuthentication has a private key. Everybody who may read the object can make tokens that the policy accepts.",
		"Replace the key, and write only the public part of the new key into `jwks`.",
	},
	{
		TCPPortOfHTTPProvider, "TCPPortOfHTTPProvider", Warning,
		"A rule of a `CUSTOM` policy with a provider over HTTP applies to a port without HTTP. Such a provider cannot decide about TCP connections, so proxies close all connections to the port that the rule matches.",
		"Limit the rule to other ports with `ports`, or use a provider over gRPC.",
	},
	{
		KeySetNotFetched, "KeySetNotFetched", Error,
		"The control plane cannot fetch the keys of an issuer, from `jwksUri` of a RequestAuthentication or by OpenID Connect Discovery. Proxies refuse the tokens of the issuer with status 401. While the control plane still has earlier keys, this is a warning, and these keys count. Only the control plane and `meshctl check`, which asks it, find this fault.",
		"Correct `jwksUri` or `issuer`, or make the server reachable from the control plane. Or write the keys into `jwks`.",
	},
	{
		UnknownTokenIssuer, "UnknownTokenIssuer", Error,
		"A rule of an AuthorizationPolicy has a condition on tokens, such as `requestPrincipals`, but no RequestAuthentication of the workloads accepts tokens of this issuer. No request meets the condition. It is a warning if another value of the same list belongs to a known issuer. A principal is `ISSUER/SUBJECT`, with the `issuer` of a RequestAuthentication as it is written there. If no workload is known, the selectors decide.",
		"Correct the issuer, or add a RequestAuthentication with it for the workloads.",
	},
	{
		PlaintextToStrict, "PlaintextToStrict", Info,
		"A PeerAuthentication requires mTLS of the whole mesh or of a namespace, but pods of a namespace without a label for injection have no proxy, so their calls to pods with a proxy fail. It is a remark, as nothing shows that they call. The label `istio-injection=disabled` of a namespace, or `sidecar.istio.io/inject: \"false\"` of a pod, says that pods need no proxy.",
		"Label the namespace and restart its pods, so that they get a proxy. If they need none, label it with `istio-injection=disabled`.",
	},
	{
		WrongTargetPort, "WrongTargetPort", Warning,
		"All pods of a Service have a proxy and declare their ports, but not the `targetPort` of the Service, while no Service uses another port that they declare. A proxy passes requests to the `targetPort`, and answers 503 if nothing listens there. It is an error if `targetPort` is a name that no pod has.",
		"Correct the `targetPort`, or declare the port in the pods.",
	},
	{
		CertificateForOtherHost, "CertificateForOtherHost", Warning,
		"The certificate of a server of a Gateway is not for one of its hosts. Clients that verify the certificate, as browsers do, refuse connections to this host. A certificate without DNS names is not reported: its clients verify it in another way.",
		"Use a certificate for the host, or correct the host.",
	},
	{
		UnknownRevision, "UnknownRevision", Error,
		"The label of a namespace or a pod names a revision that no injector has, so no proxy is injected. `istio-injection=enabled` stands for the revision `default`.",
		"Set the label to a revision or a tag that exists, or install the revision.",
	},
	{
		RevisionWithoutControlPlane, "RevisionWithoutControlPlane", Error,
		"The webhooks of a revision call a Service that does not exist or has no pods. The API server refuses all pods that the webhooks select.",
		"Start the control plane of the revision. If the revision is no longer needed, label its namespaces with another revision, and delete the webhook configuration.",
	},
	{
		RemovedRevision, "RemovedRevision", Error,
		"The proxy of a pod is of a revision that has no control plane any more. The proxy keeps its last configuration until its certificate expires or the pod restarts.",
		"Label the namespace with a revision that exists, and restart the workload.",
	},
	{
		InjectionRefused, "InjectionRefused", Error,
		"The pods of a workload are not created, because the webhook of the injector refuses them or does not answer. The message has the reason.",
		"Correct the label or annotation that the message names. If the webhook does not answer, check the control plane.",
	},
	{
		ProxyImageNotPulled, "ProxyImageNotPulled", Error,
		"A node cannot pull the image of the proxy or of its init container, so the pod does not start.",
		"Correct the image: in the annotation `sidecar.istio.io/proxyImage` of the pod, or in the values of the control plane.",
	},
	{
		SubsetMissingInCluster, "SubsetMissingInCluster", Error,
		"A route sends requests to a subset that has pods in a cluster of another network, but no DestinationRule of that cluster defines the subset. Requests through an east-west gateway name their subset, and the gateway knows only the subsets of its own cluster. It refuses the requests, and the client gets status 503. If both clusters define the subset with different labels, this is a warning, or an error if no pod has the labels.",
		"Apply the DestinationRule in both clusters.",
	},
	{
		DestinationRuleDiffers, "DestinationRuleDiffers", Warning,
		"Clients in two clusters call the same service with different settings, because the DestinationRule of the service is only in one cluster, or is different in the other.",
		"Apply the DestinationRule in both clusters or, if the cluster without it is right, in none.",
	},
	{
		GatewayDoesNotPassOn, "GatewayDoesNotPassOn", Error,
		"Clients of another network call services through the east-west gateway of a cluster, but no Gateway object of the cluster has a server of mode `AUTO_PASSTHROUGH` at this port with the hosts of the services.",
		"Add the Gateway `cross-network-gateway` with the host `*.local`, or the host to its server.",
	},
	{
		SecurityDiffers, "SecurityDiffers", Warning,
		"A PeerAuthentication, an AuthorizationPolicy or a RequestAuthentication applies to the pods of a service in one cluster, but not to the pods of the same service in another cluster. A client that the policy restricts reaches the other pods. If the clients of one cluster use plaintext where pods in the other require mTLS, or the reverse, requests fail, and this is an error.",
		"Apply the policy in both clusters or, if the cluster without it is right, in none.",
	},
	{
		TrustDomainDiffers, "TrustDomainDiffers", Error,
		"The MeshConfig of a cluster has another `trustDomain` than that of another cluster, and does not list it in `trustDomainAliases`. Proxies refuse clients of the other trust domain.",
		"Use one trust domain, or list the other one in `trustDomainAliases`.",
	},
	{
		MeshConfigDiffers, "MeshConfigDiffers", Warning,
		"A field of MeshConfig that concerns security differs between clusters, so the same request may be permitted in one cluster and refused in the other: `rootNamespace`, `enableAutoMtls`, `meshMTLS`, `tlsDefaults`, `pathNormalization` or `outboundTrafficPolicy`.",
		"Set the field to the same value in all clusters.",
	},
	{
		WrongNetworkLabel, "WrongNetworkLabel", Error,
		"A cluster has a gateway of a network, but its system namespace has no label `topology.istio.io/network`, while another cluster has a network. Proxies of the other cluster do not know that pods of this cluster are in another network, and call them directly. Or the label names another network than the gateway: proxies count pods as pods of that network, and call them directly, or not at all. This concerns pods that have no such label themselves, such as pods without a sidecar: an injector that knows the network gives it to the pods.",
		"Label the system namespace with the network.",
	},
	{
		ClusterNotLinked, "ClusterNotLinked", Error,
		"A cluster with a control plane has no remote secret, although `--context` names other clusters of its mesh. The control plane reads only its own cluster, so clients there call no pods in other clusters.",
		"Link the clusters with `meshctl multicluster link`.",
	},
	{
		RoutesDiffer, "RoutesDiffer", Warning,
		"Clients in two clusters call the same service by different routes, because the VirtualService of the service is only in one cluster, or is different in the other. Proxies use the VirtualServices of their own cluster only. Routes of gateways are not compared.",
		"Apply the VirtualService in both clusters or, if the cluster without it is right, in none.",
	},
}
