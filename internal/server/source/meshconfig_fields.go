package source

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/yamldoc"
)

// meshFields lists every field of MeshConfig once, and the subfields of fields that
// work partly.
var meshFields = []apiField{
	{Path: "trustDomain", Support: Works, Meaning: "the flag `--trust-domain` wins over it"},
	{Path: "trustDomainAliases", Support: Works},
	{Path: "rootNamespace", Support: Works},
	{Path: "connectTimeout", Support: Works},
	{Path: "enableAutoMtls", Support: Works},
	{Path: "protocolDetectionTimeout", Support: Works},
	{Path: "accessLogFile", Support: Works, Meaning: "see [access-logs.md](access-logs.md)"},
	{Path: "accessLogFormat", Support: Works},
	{Path: "accessLogEncoding", Support: Works},
	{Path: "extensionProviders", Support: Partly, Meaning: "the providers with `envoyFileAccessLog`, see [access-logs.md](access-logs.md#telemetry)"},
	{Path: "extensionProviders.name", Support: Works},
	{Path: "extensionProviders.envoyFileAccessLog", Support: Works},
	{Path: "extensionProviders.envoyExtAuthzHttp", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.envoyExtAuthzGrpc", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.zipkin", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.lightstep", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.datadog", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.stackdriver", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.opencensus", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.skywalking", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.opentelemetry", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.prometheus", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.envoyHttpAls", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.envoyTcpAls", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.envoyOtelAls", Support: NoEffect, Meaning: otherProvider},
	{Path: "extensionProviders.sds", Support: NoEffect, Meaning: otherProvider},
	{Path: "defaultProviders", Support: Partly, Meaning: "`accessLogging`"},
	{Path: "defaultProviders.accessLogging", Support: Works},
	{Path: "defaultProviders.metrics", Support: NoEffect, Meaning: "the metrics of proxies are Envoy's own"},
	{Path: "defaultProviders.tracing", Support: NoEffect, Meaning: "no spans are sent"},
	{Path: "enableTracing", Support: Works, Meaning: "sampling and request ids; [no spans are sent](access-logs.md#tracing)"},
	{Path: "disableEnvoyListenerLog", Support: Works},
	{Path: "pathNormalization", Support: Works},
	{Path: "defaultHttpRetryPolicy", Support: Partly, Meaning: "all fields but `perTryTimeout`, as with Istio"},
	{Path: "defaultHttpRetryPolicy.attempts", Support: Works, Meaning: "0 disables retries"},
	{Path: "defaultHttpRetryPolicy.retryOn", Support: Works},
	{Path: "defaultHttpRetryPolicy.retryRemoteLocalities", Support: Works},
	{Path: "defaultHttpRetryPolicy.retryIgnorePreviousHosts", Support: Works},
	{Path: "defaultHttpRetryPolicy.backoff", Support: Works},
	{Path: "defaultHttpRetryPolicy.perTryTimeout", Support: NoEffect, Meaning: "a try takes as long as the request may"},
	{Path: "defaultServiceExportTo", Support: Works, Meaning: "each cluster's own setting counts for its services"},
	{Path: "serviceSettings", Support: Works, Meaning: "the most specific host counts"},
	{Path: "outboundTrafficPolicy", Support: Partly, Meaning: "`mode`"},
	{Path: "outboundTrafficPolicy.mode", Support: Partly, Meaning: "`ALLOW_ANY_DYNAMIC_DNS` means `ALLOW_ANY`: connections go on to the address that the application has resolved"},
	{Path: "outboundTrafficPolicy.tls", Support: NoEffect, Meaning: "it is for `ALLOW_ANY_DYNAMIC_DNS`; to make TLS connections, use a ServiceEntry and a DestinationRule"},
	{Path: "meshMTLS", Support: Works, Meaning: "for mTLS between proxies, see [serve.md](serve.md#key-exchange-between-envoys)"},
	{Path: "caCertificates", Support: Partly, Meaning: "entries without `certSigners`"},
	{Path: "caCertificates.pem", Support: Works},
	{Path: "caCertificates.spiffeBundleUrl", Support: Works},
	{Path: "caCertificates.trustDomains", Support: Works},
	{Path: "caCertificates.certSigners", Support: Partly, Meaning: "an entry with it is ignored and reported"},

	{Path: "proxyListenPort", Support: Works, Meaning: "the redirection rules of pods must lead there"},
	{Path: "proxyInboundListenPort", Support: Works},
	{Path: "proxyHttpPort", Support: NoEffect, Meaning: "there is no HTTP proxy port"},
	{Path: "hboneIdleTimeout", Support: NoEffect, Meaning: "there is no HBONE"},
	{Path: "tcpKeepalive", Support: Works},
	{Path: "ingressClass", Support: NoEffect, Meaning: noIngress},
	{Path: "ingressService", Support: NoEffect, Meaning: noIngress},
	{Path: "ingressControllerMode", Support: NoEffect, Meaning: noIngress},
	{Path: "ingressSelector", Support: NoEffect, Meaning: noIngress},
	{Path: "enableEnvoyAccessLogService", Support: NoEffect, Meaning: "no access log is sent to a service"},
	{Path: "defaultConfig", Support: NoEffect, Meaning: "an agent takes its settings only from its environment variable PROXY_CONFIG"},
	{Path: "inboundTrafficPolicy", Support: Works},
	{Path: "configSources", Support: NoEffect, Meaning: "the flags of serve select the sources of configuration"},
	{Path: "defaultVirtualServiceExportTo", Support: Works},
	{Path: "defaultDestinationRuleExportTo", Support: Works},
	{Path: "localityLbSetting", Support: Works, Meaning: "failover needs `outlierDetection` in a DestinationRule; see [traffic-policy.md](traffic-policy.md#near-endpoints-first)"},
	{Path: "zoneAwareLbSetting", Support: NoEffect, Meaning: noZoneAware},
	{Path: "dnsRefreshRate", Support: Works},
	{Path: "h2UpgradePolicy", Support: Works, Meaning: "for ports of HTTP"},
	{Path: "inboundClusterStatName", Support: Works, Meaning: "for ports of services"},
	{Path: "outboundClusterStatName", Support: Works},
	{Path: "certificates", Support: NoEffect, Meaning: "no certificates for DNS names are issued"},
	{Path: "serviceScopeConfigs", Support: NoEffect, Meaning: "there is no ambient mode"},
	{Path: "enablePrometheusMerge", Support: NoEffect, Meaning: "scrape the application and its proxy, at port 15090, separately: there is no injector that redirects the scrapes of pods"},
	{Path: "verifyCertificateAtClient", Support: NoEffect, Meaning: "proxies verify all certificates; to permit any, use `insecureSkipVerify` of a DestinationRule"},
	{Path: "ca", Support: NoEffect, Meaning: "serve signs certificates itself"},
	{Path: "discoverySelectors", Support: Works, Meaning: "they select namespaces of all clusters. The system namespace and `rootNamespace` are always in the mesh"},
	{Path: "tlsDefaults", Support: Works, Meaning: "for TLS by DestinationRules and of servers of Gateways"},
	{Path: "defaultTrafficPolicy", Support: Works, Meaning: "for outbound connections, where a DestinationRule has no `connectionPool` or no `outlierDetection`"},
	{Path: "serviceEntryVisibility", Support: Works, Meaning: "with `applyToSidecars`, it replaces `exportTo` of ServiceEntries"},
}

const (
	noIngress     = "Ingresses are not read"
	otherProvider = "only a provider with `envoyFileAccessLog` is used"
)

// actualMeshConfig returns a MeshConfig that describes the fixed behaviour of the mesh:
// settings that ask for it are satisfied although they have no effect.
func actualMeshConfig() *meshv1alpha1.MeshConfig {
	m := DefaultMeshConfig()
	m.EnablePrometheusMerge = wrapperspb.Bool(false)
	m.IngressControllerMode = meshv1alpha1.MeshConfig_OFF
	m.VerifyCertificateAtClient = wrapperspb.Bool(true) //nolint:staticcheck // old configurations have it
	return m
}

// meshWithoutEffect returns a fault for each field of the MeshConfig that has no effect
// and asks for something other than the fixed behaviour.
func meshWithoutEffect(given *meshv1alpha1.MeshConfig, doc yamldoc.Value) []*FieldError {
	is := actualMeshConfig()
	asked := proto.CloneOf(is)
	overlay(asked.ProtoReflect(), given.ProtoReflect(), doc)
	var out []*FieldError
	for i := range meshFields {
		f := &meshFields[i]
		if f.Support == NoEffect && !valueAt(is.ProtoReflect(), f.Path).Equal(valueAt(asked.ProtoReflect(), f.Path)) {
			out = append(out, noEffect(f.Path, f.Meaning))
		}
	}
	return out
}

// valueAt returns the value of the field at the path. For a field of a list's items, which
// the conversion of the list checks, it returns no value.
func valueAt(m protoreflect.Message, path string) protoreflect.Value {
	name, rest, deeper := strings.Cut(path, ".")
	fd := m.Descriptor().Fields().ByJSONName(name)
	value := m.Get(fd)
	switch {
	case deeper && fd.IsList():
		return protoreflect.Value{}
	case deeper:
		return valueAt(value.Message(), rest)
	}
	return value
}
