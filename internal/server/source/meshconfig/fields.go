package meshconfig

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Fields lists every field of MeshConfig once, and the subfields of fields that
// work partly.
var Fields = []fields.Field{
	{Path: "trustDomain", Support: fields.Works, Meaning: "the flag `--trust-domain` overrides it"},
	{Path: "trustDomainAliases", Support: fields.Works},
	{Path: "rootNamespace", Support: fields.Works},
	{Path: "connectTimeout", Support: fields.Works},
	{Path: "enableAutoMtls", Support: fields.Works},
	{Path: "protocolDetectionTimeout", Support: fields.Works},
	{Path: "accessLogFile", Support: fields.Works, Meaning: "see [access-logs.md](access-logs.md)"},
	{Path: "accessLogFormat", Support: fields.Works},
	{Path: "accessLogEncoding", Support: fields.Works},
	{Path: "extensionProviders", Support: fields.Partly, Meaning: "access logs to files and by OTLP, spans by OpenTelemetry and Zipkin, external authorization; see [access-logs.md](access-logs.md#telemetry) and [security-policy.md](security-policy.md#external-authorization)"},
	{Path: "extensionProviders.name", Support: fields.Works},
	{Path: "extensionProviders.envoyFileAccessLog", Support: fields.Works},
	{Path: "extensionProviders.envoyExtAuthzHttp", Support: fields.Works, Meaning: "for requests; TCP connections that a rule matches are refused"},
	{Path: "extensionProviders.envoyExtAuthzGrpc", Support: fields.Works},
	{Path: "extensionProviders.zipkin", Support: fields.Works, Meaning: "without headers from variables of the control plane (`envName`)"},
	{Path: "extensionProviders.lightstep", Support: fields.NoEffect, Meaning: noTracer},
	{Path: "extensionProviders.datadog", Support: fields.NoEffect, Meaning: useOpenTelemetry},
	{Path: "extensionProviders.stackdriver", Support: fields.NoEffect, Meaning: noTracer},
	{Path: "extensionProviders.opencensus", Support: fields.NoEffect, Meaning: noTracer},
	{Path: "extensionProviders.skywalking", Support: fields.NoEffect, Meaning: useOpenTelemetry},
	{Path: "extensionProviders.opentelemetry", Support: fields.Works, Meaning: "without `dynatraceSampler`, `resourceDetectors.dynatrace`, `serviceAttributeEnrichment` and headers with `envName`, which are reported"},
	{Path: "extensionProviders.prometheus", Support: fields.Works, Meaning: "for [Telemetries](metrics.md)"},
	{Path: "extensionProviders.envoyHttpAls", Support: fields.NoEffect, Meaning: "use `envoyOtelAls`"},
	{Path: "extensionProviders.envoyTcpAls", Support: fields.NoEffect, Meaning: "use `envoyOtelAls`"},
	{Path: "extensionProviders.envoyOtelAls", Support: fields.Works},
	{Path: "extensionProviders.sds", Support: fields.NoEffect, Meaning: "secrets come from the control plane"},
	{Path: "defaultProviders", Support: fields.Works, Meaning: "of `tracing` only the first provider; for `metrics` see [metrics.md](metrics.md)"},
	{Path: "enableTracing", Support: fields.Works, Meaning: "sampling and request ids where [no provider takes spans](access-logs.md#tracing)"},
	{Path: "disableEnvoyListenerLog", Support: fields.Works},
	{Path: "pathNormalization", Support: fields.Works},
	{Path: "defaultHttpRetryPolicy", Support: fields.Partly, Meaning: "all fields but `perTryTimeout`, as with Istio"},
	{Path: "defaultHttpRetryPolicy.attempts", Support: fields.Works, Meaning: "0 disables retries"},
	{Path: "defaultHttpRetryPolicy.retryOn", Support: fields.Works},
	{Path: "defaultHttpRetryPolicy.retryRemoteLocalities", Support: fields.Works},
	{Path: "defaultHttpRetryPolicy.retryIgnorePreviousHosts", Support: fields.Works},
	{Path: "defaultHttpRetryPolicy.backoff", Support: fields.Works},
	{Path: "defaultHttpRetryPolicy.perTryTimeout", Support: fields.NoEffect, Meaning: "the timeout of a try is the timeout of the request"},
	{Path: "defaultServiceExportTo", Support: fields.Works, Meaning: "each cluster's own setting applies to its services"},
	{Path: "serviceSettings", Support: fields.Works, Meaning: "the settings of the most specific host apply"},
	{Path: "outboundTrafficPolicy", Support: fields.Partly, Meaning: "`mode`"},
	{Path: "outboundTrafficPolicy.mode", Support: fields.Partly, Meaning: "`ALLOW_ANY_DYNAMIC_DNS` means `ALLOW_ANY`, and is reported: proxies connect to the address that the application has resolved"},
	{Path: "outboundTrafficPolicy.tls", Support: fields.NoEffect, Meaning: "it is for `ALLOW_ANY_DYNAMIC_DNS`; to make TLS connections, use a ServiceEntry and a DestinationRule"},
	{Path: "meshMTLS", Support: fields.Works, Meaning: "for mTLS between proxies, see [serve.md](serve.md#key-exchange-between-envoys); `cipherSuites` need `minProtocolVersion: TLSV1_2`"},
	{Path: "caCertificates", Support: fields.Partly, Meaning: "entries without `certSigners`"},
	{Path: "caCertificates.pem", Support: fields.Works},
	{Path: "caCertificates.spiffeBundleUrl", Support: fields.Works},
	{Path: "caCertificates.trustDomains", Support: fields.Works},
	{Path: "caCertificates.certSigners", Support: fields.Partly, Meaning: "an entry with this field is not used at all, and is reported"},

	{Path: "proxyListenPort", Support: fields.Works, Meaning: "the redirection rules of pods must redirect to this port"},
	{Path: "proxyInboundListenPort", Support: fields.Works},
	{Path: "proxyHttpPort", Support: fields.Works, Meaning: "see [traffic.md](traffic.md#http-proxy)"},
	{Path: "hboneIdleTimeout", Support: fields.NoEffect, Meaning: "there is no HBONE"},
	{Path: "tcpKeepalive", Support: fields.Works},
	{Path: "ingressClass", Support: fields.NoEffect, Meaning: noIngress},
	{Path: "ingressService", Support: fields.NoEffect, Meaning: noIngress},
	{Path: "ingressControllerMode", Support: fields.NoEffect, Meaning: noIngress},
	{Path: "ingressSelector", Support: fields.NoEffect, Meaning: noIngress},
	{Path: "enableEnvoyAccessLogService", Support: fields.NoEffect, Meaning: "use a provider with `envoyOtelAls`"},
	{Path: "defaultConfig", Support: fields.Partly, Meaning: "`tracing`, see [access-logs.md](access-logs.md#tracing), `gatewayTopology`, and settings of injected pods"},
	{Path: "defaultConfig.tracing", Support: fields.Partly, Meaning: "tags, sampling, and Zipkin at a Service of the mesh"},
	{Path: "defaultConfig.tracing.zipkin", Support: fields.Works, Meaning: "`host:port` of a Service, such as `zipkin.istio-system:9411`"},
	{Path: "defaultConfig.tracing.customTags", Support: fields.Works},
	{Path: "defaultConfig.tracing.sampling", Support: fields.Works},
	{Path: "defaultConfig.tracing.maxPathTagLength", Support: fields.Works},
	{Path: "defaultConfig.tracing.enableIstioTags", Support: fields.Works},
	{Path: "defaultConfig.tracing.tlsSettings", Support: fields.NoEffect, Meaning: "a DestinationRule for the Service sets TLS"},
	{Path: "defaultConfig.tracing.lightstep", Support: fields.NoEffect, Meaning: noTracer},
	{Path: "defaultConfig.tracing.datadog", Support: fields.NoEffect, Meaning: useOpenTelemetry},
	{Path: "defaultConfig.tracing.stackdriver", Support: fields.NoEffect, Meaning: noTracer},
	{Path: "defaultConfig.tracing.openCensusAgent", Support: fields.NoEffect, Meaning: noTracer},
	{Path: "defaultConfig.configPath", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.binaryPath", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.serviceCluster", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.tracingServiceName", Support: fields.NoEffect, Meaning: fromProxyConfig},
	{Path: "defaultConfig.drainDuration", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.discoveryAddress", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.discoveryRefreshDelay", Support: fields.NoEffect, Meaning: "the control plane sends changes at once"},
	{Path: "defaultConfig.zipkinAddress", Support: fields.NoEffect, Meaning: "use `tracing.zipkin.address`"},
	{Path: "defaultConfig.statsdUdpAddress", Support: fields.NoEffect, Meaning: ownSinks},
	{Path: "defaultConfig.envoyMetricsServiceAddress", Support: fields.NoEffect, Meaning: ownSinks},
	{Path: "defaultConfig.proxyAdminPort", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.availabilityZone", Support: fields.NoEffect, Meaning: "the locality comes from the node of the pod"},
	{Path: "defaultConfig.controlPlaneAuthPolicy", Support: fields.NoEffect, Meaning: "connections to the control plane always use TLS"},
	{Path: "defaultConfig.customConfigFile", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.statNameLength", Support: fields.NoEffect, Meaning: fromProxyConfig},
	{Path: "defaultConfig.concurrency", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.proxyBootstrapTemplatePath", Support: fields.NoEffect, Meaning: "use `customConfigFile` or `ISTIO_BOOTSTRAP_OVERRIDE`"},
	{Path: "defaultConfig.interceptionMode", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.sds", Support: fields.NoEffect, Meaning: "certificates always come by SDS"},
	{Path: "defaultConfig.envoyAccessLogService", Support: fields.NoEffect, Meaning: "use a provider with `envoyOtelAls`"},
	{Path: "defaultConfig.envoyMetricsService", Support: fields.NoEffect, Meaning: ownSinks},
	{Path: "defaultConfig.proxyMetadata", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.runtimeValues", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.statusPort", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.extraStatTags", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.gatewayTopology", Support: fields.Works, Meaning: "for gateways without one in `PROXY_CONFIG`, see [gateways.md](gateways.md#proxies-in-front-of-a-gateway)"},
	{Path: "defaultConfig.terminationDrainDuration", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.meshId", Support: fields.Works, Meaning: ofInjected + ", if neither the values of the injector nor `--mesh-id` name a mesh"},
	{Path: "defaultConfig.readinessProbe", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.proxyStatsMatcher", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.holdApplicationUntilProxyStarts", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.caCertificatesPem", Support: fields.NoEffect, Meaning: "roots come from the control plane"},
	{Path: "defaultConfig.image", Support: fields.NoEffect, Meaning: fromProxyConfig},
	{Path: "defaultConfig.privateKeyProvider", Support: fields.NoEffect, Meaning: "Envoy signs with the key itself"},
	{Path: "defaultConfig.proxyHeaders", Support: fields.NoEffect, Meaning: fromProxyConfig},
	{Path: "defaultConfig.fileFlushInterval", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.fileFlushMinSizeKb", Support: fields.Works, Meaning: ofInjected},
	{Path: "defaultConfig.statsCompression", Support: fields.NoEffect, Meaning: fromProxyConfig},
	{Path: "defaultConfig.connectionSettings", Support: fields.NoEffect, Meaning: fromProxyConfig},
	{Path: "inboundTrafficPolicy", Support: fields.Works},
	{Path: "configSources", Support: fields.NoEffect, Meaning: "the flags of serve select the sources of configuration"},
	{Path: "defaultVirtualServiceExportTo", Support: fields.Works},
	{Path: "defaultDestinationRuleExportTo", Support: fields.Works},
	{Path: "localityLbSetting", Support: fields.Works, Meaning: "failover needs `outlierDetection` in a DestinationRule; see [traffic-policy.md](traffic-policy.md#near-endpoints-first)"},
	{Path: "zoneAwareLbSetting", Support: fields.NoEffect, Meaning: fields.NoZoneAware},
	{Path: "dnsRefreshRate", Support: fields.Works},
	{Path: "h2UpgradePolicy", Support: fields.Works, Meaning: "for ports of HTTP"},
	{Path: "inboundClusterStatName", Support: fields.Works, Meaning: "for ports of services"},
	{Path: "outboundClusterStatName", Support: fields.Works},
	{Path: "certificates", Support: fields.NoEffect, Meaning: "no certificates for DNS names are issued"},
	{Path: "serviceScopeConfigs", Support: fields.NoEffect, Meaning: "there is no ambient mode"},
	{Path: "enablePrometheusMerge", Support: fields.Works, Meaning: "by injection of sidecars; [meshctl agent](agent.md#metrics) then serves the merged metrics"},
	{Path: "verifyCertificateAtClient", Support: fields.NoEffect, Meaning: "proxies verify all certificates; to permit any, use `insecureSkipVerify` of a DestinationRule"},
	{Path: "ca", Support: fields.NoEffect, Meaning: "serve signs certificates itself"},
	{Path: "discoverySelectors", Support: fields.Works, Meaning: "they select namespaces of all clusters. The system namespace and `rootNamespace` are always in the mesh. See [serve.md](serve.md#namespaces-that-are-not-in-the-mesh)"},
	{Path: "tlsDefaults", Support: fields.Works, Meaning: "for TLS of DestinationRules and of Gateway servers"},
	{Path: "defaultTrafficPolicy", Support: fields.Works, Meaning: "for outbound connections, where a DestinationRule has no `connectionPool` or no `outlierDetection`; the `outlierDetection` alone does not prefer near endpoints: that needs one in a DestinationRule, or its `localityLbSetting`"},
	{Path: "serviceEntryVisibility", Support: fields.Works, Meaning: "with `applyToSidecars`, it replaces `exportTo` of ServiceEntries"},
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

// Actual returns a MeshConfig that describes the fixed behaviour of the mesh:
// settings that ask for it are satisfied although they have no effect.
func Actual() *meshv1alpha1.MeshConfig {
	m := Default()
	m.IngressControllerMode = meshv1alpha1.MeshConfig_OFF
	m.VerifyCertificateAtClient = wrapperspb.Bool(true) //nolint:staticcheck // old configurations have it
	return m
}

// meshWithoutEffect returns a fault for each field of the MeshConfig that has no effect
// and asks for something other than the fixed behaviour.
func meshWithoutEffect(given *meshv1alpha1.MeshConfig, doc yamldoc.Value) []*fields.Error {
	is := Actual()
	asked := proto.CloneOf(is)
	overlay(asked.ProtoReflect(), given.ProtoReflect(), doc)
	var out []*fields.Error
	for i := range Fields {
		f := &Fields[i]
		if f.Support == fields.NoEffect && !valueAt(is.ProtoReflect(), f.Path).Equal(valueAt(asked.ProtoReflect(), f.Path)) {
			out = append(out, fields.WithoutEffect(f.Path, f.Meaning))
		}
	}
	return out
}

// valuesWithoutEffect returns a fault for each value without effect of a field that works.
func valuesWithoutEffect(m *meshv1alpha1.MeshConfig) []*fields.Error {
	var out []*fields.Error
	if m.GetOutboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS {
		out = append(out, fields.WithoutEffect("outboundTrafficPolicy.mode", "ALLOW_ANY_DYNAMIC_DNS means ALLOW_ANY: proxies connect to the address that the application has resolved"))
	}
	const noSuites = "they are for TLS 1.2: set minProtocolVersion to TLSV1_2"
	if t := m.GetMeshMTLS(); len(t.GetCipherSuites()) > 0 && t.GetMinProtocolVersion() != meshv1alpha1.MeshConfig_TLSConfig_TLSV1_2 {
		out = append(out, fields.WithoutEffect("meshMTLS.cipherSuites", noSuites))
	}
	if t := m.GetTlsDefaults(); len(t.GetCipherSuites()) > 0 && t.GetMinProtocolVersion() == meshv1alpha1.MeshConfig_TLSConfig_TLSV1_3 {
		out = append(out, fields.WithoutEffect("tlsDefaults.cipherSuites", noSuites))
	}
	if m.GetDefaultTrafficPolicy().GetOutlierDetection().GetConsecutiveErrors() != 0 { //nolint:staticcheck // old configurations have it
		out = append(out, fields.WithoutEffect("defaultTrafficPolicy.outlierDetection.consecutiveErrors", "use consecutive5xxErrors"))
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
