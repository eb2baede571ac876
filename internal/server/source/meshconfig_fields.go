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
	{Path: "trustDomain", Support: Works, Meaning: "the flag `--trust-domain` overrides it"},
	{Path: "trustDomainAliases", Support: Works},
	{Path: "rootNamespace", Support: Works},
	{Path: "connectTimeout", Support: Works},
	{Path: "enableAutoMtls", Support: Works},
	{Path: "protocolDetectionTimeout", Support: Works},
	{Path: "accessLogFile", Support: Works, Meaning: "see [access-logs.md](access-logs.md)"},
	{Path: "accessLogFormat", Support: Works},
	{Path: "accessLogEncoding", Support: Works},
	{Path: "extensionProviders", Support: Partly, Meaning: "access logs to files and by OTLP, spans by OpenTelemetry and Zipkin, external authorization; see [access-logs.md](access-logs.md#telemetry) and [security-policy.md](security-policy.md#external-authorization)"},
	{Path: "extensionProviders.name", Support: Works},
	{Path: "extensionProviders.envoyFileAccessLog", Support: Works},
	{Path: "extensionProviders.envoyExtAuthzHttp", Support: Works, Meaning: "for requests; TCP connections that a rule matches are refused"},
	{Path: "extensionProviders.envoyExtAuthzGrpc", Support: Works},
	{Path: "extensionProviders.zipkin", Support: Works, Meaning: "without headers from variables of the control plane (`envName`)"},
	{Path: "extensionProviders.lightstep", Support: NoEffect, Meaning: noTracer},
	{Path: "extensionProviders.datadog", Support: NoEffect, Meaning: useOpenTelemetry},
	{Path: "extensionProviders.stackdriver", Support: NoEffect, Meaning: noTracer},
	{Path: "extensionProviders.opencensus", Support: NoEffect, Meaning: noTracer},
	{Path: "extensionProviders.skywalking", Support: NoEffect, Meaning: useOpenTelemetry},
	{Path: "extensionProviders.opentelemetry", Support: Works, Meaning: "without `dynatraceSampler`, `resourceDetectors.dynatrace`, `serviceAttributeEnrichment` and headers with `envName`, which are reported"},
	{Path: "extensionProviders.prometheus", Support: Works, Meaning: "for [Telemetries](metrics.md)"},
	{Path: "extensionProviders.envoyHttpAls", Support: NoEffect, Meaning: "use `envoyOtelAls`"},
	{Path: "extensionProviders.envoyTcpAls", Support: NoEffect, Meaning: "use `envoyOtelAls`"},
	{Path: "extensionProviders.envoyOtelAls", Support: Works},
	{Path: "extensionProviders.sds", Support: NoEffect, Meaning: "secrets come from the control plane"},
	{Path: "defaultProviders", Support: Works, Meaning: "of `tracing` only the first provider; for `metrics` see [metrics.md](metrics.md)"},
	{Path: "enableTracing", Support: Works, Meaning: "sampling and request ids where [no provider takes spans](access-logs.md#tracing)"},
	{Path: "disableEnvoyListenerLog", Support: Works},
	{Path: "pathNormalization", Support: Works},
	{Path: "defaultHttpRetryPolicy", Support: Partly, Meaning: "all fields but `perTryTimeout`, as with Istio"},
	{Path: "defaultHttpRetryPolicy.attempts", Support: Works, Meaning: "0 disables retries"},
	{Path: "defaultHttpRetryPolicy.retryOn", Support: Works},
	{Path: "defaultHttpRetryPolicy.retryRemoteLocalities", Support: Works},
	{Path: "defaultHttpRetryPolicy.retryIgnorePreviousHosts", Support: Works},
	{Path: "defaultHttpRetryPolicy.backoff", Support: Works},
	{Path: "defaultHttpRetryPolicy.perTryTimeout", Support: NoEffect, Meaning: "the timeout of a try is the timeout of the request"},
	{Path: "defaultServiceExportTo", Support: Works, Meaning: "each cluster's own setting applies to its services"},
	{Path: "serviceSettings", Support: Works, Meaning: "the settings of the most specific host apply"},
	{Path: "outboundTrafficPolicy", Support: Partly, Meaning: "`mode`"},
	{Path: "outboundTrafficPolicy.mode", Support: Partly, Meaning: "`ALLOW_ANY_DYNAMIC_DNS` means `ALLOW_ANY`, and is reported: proxies connect to the address that the application has resolved"},
	{Path: "outboundTrafficPolicy.tls", Support: NoEffect, Meaning: "it is for `ALLOW_ANY_DYNAMIC_DNS`; to make TLS connections, use a ServiceEntry and a DestinationRule"},
	{Path: "meshMTLS", Support: Works, Meaning: "for mTLS between proxies, see [serve.md](serve.md#key-exchange-between-envoys); `cipherSuites` need `minProtocolVersion: TLSV1_2`"},
	{Path: "caCertificates", Support: Partly, Meaning: "entries without `certSigners`"},
	{Path: "caCertificates.pem", Support: Works},
	{Path: "caCertificates.spiffeBundleUrl", Support: Works},
	{Path: "caCertificates.trustDomains", Support: Works},
	{Path: "caCertificates.certSigners", Support: Partly, Meaning: "an entry with this field is not used at all, and is reported"},

	{Path: "proxyListenPort", Support: Works, Meaning: "the redirection rules of pods must redirect to this port"},
	{Path: "proxyInboundListenPort", Support: Works},
	{Path: "proxyHttpPort", Support: Works, Meaning: "see [traffic.md](traffic.md#http-proxy)"},
	{Path: "hboneIdleTimeout", Support: NoEffect, Meaning: "there is no HBONE"},
	{Path: "tcpKeepalive", Support: Works},
	{Path: "ingressClass", Support: NoEffect, Meaning: noIngress},
	{Path: "ingressService", Support: NoEffect, Meaning: noIngress},
	{Path: "ingressControllerMode", Support: NoEffect, Meaning: noIngress},
	{Path: "ingressSelector", Support: NoEffect, Meaning: noIngress},
	{Path: "enableEnvoyAccessLogService", Support: NoEffect, Meaning: "use a provider with `envoyOtelAls`"},
	{Path: "defaultConfig", Support: Partly, Meaning: "`tracing`, see [access-logs.md](access-logs.md#tracing), `gatewayTopology`, and settings of injected pods"},
	{Path: "defaultConfig.tracing", Support: Partly, Meaning: "tags, sampling, and Zipkin at a Service of the mesh"},
	{Path: "defaultConfig.tracing.zipkin", Support: Works, Meaning: "`host:port` of a Service, such as `zipkin.istio-system:9411`"},
	{Path: "defaultConfig.tracing.customTags", Support: Works},
	{Path: "defaultConfig.tracing.sampling", Support: Works},
	{Path: "defaultConfig.tracing.maxPathTagLength", Support: Works},
	{Path: "defaultConfig.tracing.enableIstioTags", Support: Works},
	{Path: "defaultConfig.tracing.tlsSettings", Support: NoEffect, Meaning: "a DestinationRule for the Service sets TLS"},
	{Path: "defaultConfig.tracing.lightstep", Support: NoEffect, Meaning: noTracer},
	{Path: "defaultConfig.tracing.datadog", Support: NoEffect, Meaning: useOpenTelemetry},
	{Path: "defaultConfig.tracing.stackdriver", Support: NoEffect, Meaning: noTracer},
	{Path: "defaultConfig.tracing.openCensusAgent", Support: NoEffect, Meaning: noTracer},
	{Path: "defaultConfig.configPath", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.binaryPath", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.serviceCluster", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.tracingServiceName", Support: NoEffect, Meaning: fromProxyConfig},
	{Path: "defaultConfig.drainDuration", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.discoveryAddress", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.discoveryRefreshDelay", Support: NoEffect, Meaning: "the control plane sends changes at once"},
	{Path: "defaultConfig.zipkinAddress", Support: NoEffect, Meaning: "use `tracing.zipkin.address`"},
	{Path: "defaultConfig.statsdUdpAddress", Support: NoEffect, Meaning: ownSinks},
	{Path: "defaultConfig.envoyMetricsServiceAddress", Support: NoEffect, Meaning: ownSinks},
	{Path: "defaultConfig.proxyAdminPort", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.availabilityZone", Support: NoEffect, Meaning: "the locality comes from the node of the pod"},
	{Path: "defaultConfig.controlPlaneAuthPolicy", Support: NoEffect, Meaning: "connections to the control plane always use TLS"},
	{Path: "defaultConfig.customConfigFile", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.statNameLength", Support: NoEffect, Meaning: fromProxyConfig},
	{Path: "defaultConfig.concurrency", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.proxyBootstrapTemplatePath", Support: NoEffect, Meaning: "use `customConfigFile` or `ISTIO_BOOTSTRAP_OVERRIDE`"},
	{Path: "defaultConfig.interceptionMode", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.sds", Support: NoEffect, Meaning: "certificates always come by SDS"},
	{Path: "defaultConfig.envoyAccessLogService", Support: NoEffect, Meaning: "use a provider with `envoyOtelAls`"},
	{Path: "defaultConfig.envoyMetricsService", Support: NoEffect, Meaning: ownSinks},
	{Path: "defaultConfig.proxyMetadata", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.runtimeValues", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.statusPort", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.extraStatTags", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.gatewayTopology", Support: Works, Meaning: "for gateways without one in `PROXY_CONFIG`, see [gateways.md](gateways.md#proxies-in-front-of-a-gateway)"},
	{Path: "defaultConfig.terminationDrainDuration", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.meshId", Support: Works, Meaning: ofInjected + ", if neither the values of the injector nor `--mesh-id` name a mesh"},
	{Path: "defaultConfig.readinessProbe", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.proxyStatsMatcher", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.holdApplicationUntilProxyStarts", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.caCertificatesPem", Support: NoEffect, Meaning: "roots come from the control plane"},
	{Path: "defaultConfig.image", Support: NoEffect, Meaning: fromProxyConfig},
	{Path: "defaultConfig.privateKeyProvider", Support: NoEffect, Meaning: "Envoy signs with the key itself"},
	{Path: "defaultConfig.proxyHeaders", Support: NoEffect, Meaning: fromProxyConfig},
	{Path: "defaultConfig.fileFlushInterval", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.fileFlushMinSizeKb", Support: Works, Meaning: ofInjected},
	{Path: "defaultConfig.statsCompression", Support: NoEffect, Meaning: fromProxyConfig},
	{Path: "defaultConfig.connectionSettings", Support: NoEffect, Meaning: fromProxyConfig},
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
	{Path: "enablePrometheusMerge", Support: Works, Meaning: "by injection of sidecars; [meshctl agent](agent.md#metrics) then serves the merged metrics"},
	{Path: "verifyCertificateAtClient", Support: NoEffect, Meaning: "proxies verify all certificates; to permit any, use `insecureSkipVerify` of a DestinationRule"},
	{Path: "ca", Support: NoEffect, Meaning: "serve signs certificates itself"},
	{Path: "discoverySelectors", Support: Works, Meaning: "they select namespaces of all clusters. The system namespace and `rootNamespace` are always in the mesh. See [serve.md](serve.md#namespaces-that-are-not-in-the-mesh)"},
	{Path: "tlsDefaults", Support: Works, Meaning: "for TLS of DestinationRules and of Gateway servers"},
	{Path: "defaultTrafficPolicy", Support: Works, Meaning: "for outbound connections, where a DestinationRule has no `connectionPool` or no `outlierDetection`; the `outlierDetection` alone does not prefer near endpoints: that needs one in a DestinationRule, or its `localityLbSetting`"},
	{Path: "serviceEntryVisibility", Support: Works, Meaning: "with `applyToSidecars`, it replaces `exportTo` of ServiceEntries"},
}

const (
	fromProxyConfig = "no agent reads it"
	// ofInjected is the meaning of settings that the injector gives to agents.
	ofInjected = "for pods that are injected afterwards, see [injection.md](injection.md)"
	noIngress  = "Ingresses are not read"
	noTracer   = "Envoy has no tracer for it; use a provider with `opentelemetry`"
	ownSinks   = "add a sink for statistics with [ISTIO_BOOTSTRAP_OVERRIDE](agent.md)"

	useOpenTelemetry = "use a provider with `opentelemetry`"
)

// actualMeshConfig returns a MeshConfig that describes the fixed behaviour of the mesh:
// settings that ask for it are satisfied although they have no effect.
func actualMeshConfig() *meshv1alpha1.MeshConfig {
	m := DefaultMeshConfig()
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

// valuesWithoutEffect returns a fault for each value without effect of a field that works.
func valuesWithoutEffect(m *meshv1alpha1.MeshConfig) []*FieldError {
	var out []*FieldError
	if m.GetOutboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS {
		out = append(out, noEffect("outboundTrafficPolicy.mode", "ALLOW_ANY_DYNAMIC_DNS means ALLOW_ANY: proxies connect to the address that the application has resolved"))
	}
	const noSuites = "they are for TLS 1.2: set minProtocolVersion to TLSV1_2"
	if t := m.GetMeshMTLS(); len(t.GetCipherSuites()) > 0 && t.GetMinProtocolVersion() != meshv1alpha1.MeshConfig_TLSConfig_TLSV1_2 {
		out = append(out, noEffect("meshMTLS.cipherSuites", noSuites))
	}
	if t := m.GetTlsDefaults(); len(t.GetCipherSuites()) > 0 && t.GetMinProtocolVersion() == meshv1alpha1.MeshConfig_TLSConfig_TLSV1_3 {
		out = append(out, noEffect("tlsDefaults.cipherSuites", noSuites))
	}
	if m.GetDefaultTrafficPolicy().GetOutlierDetection().GetConsecutiveErrors() != 0 { //nolint:staticcheck // old configurations have it
		out = append(out, noEffect("defaultTrafficPolicy.outlierDetection.consecutiveErrors", "use consecutive5xxErrors"))
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
