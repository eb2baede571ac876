package xdsgen

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	detectorsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/resource_detectors/v3"
	tagv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// tracingOf returns the tracing of the listeners of a mode. As with Istio, entries override
// each other field by field in their order, the first provider that an entry names counts,
// and MeshConfig decides if there is neither an entry nor a default provider. Only entries for the
// mode count.
func tracingOf(s *snapshot.Snapshot, n Node, labels map[string]string, sc scope, entries []*telemetryv1alpha1.Tracing, mode telemetryv1alpha1.WorkloadMode) snapshot.Tracing {
	out, provider, istioTags := s.Mesh.Listeners.Tracing, "", s.Mesh.IstioTags
	if own := n.Tracing; own != nil {
		out.Sampling, out.MaxPathTag = cmp.Or(own.GetSampling(), out.Sampling), cmp.Or(own.GetMaxPathTagLength(), out.MaxPathTag)
		if len(own.GetCustomTags()) > 0 {
			out.Tags = snapshot.TraceTagsOf(own)
		}
		if tags := own.GetEnableIstioTags(); tags != nil {
			istioTags = tags.GetValue()
		}
	}
	if entries = ofMode(entries, mode); len(entries) == 0 && len(s.Mesh.TraceDefaults) == 0 {
		return out
	}
	if out.On = true; len(s.Mesh.TraceDefaults) > 0 {
		provider = s.Mesh.TraceDefaults[0]
	}
	for _, e := range entries {
		if len(e.GetProviders()) > 0 {
			provider = e.GetProviders()[0].GetName()
		}
		if v := e.GetDisableSpanReporting(); v != nil {
			out.On = !v.GetValue()
		}
		if v := e.GetRandomSamplingPercentage(); v != nil {
			out.Sampling = v.GetValue()
		}
		if v := e.GetUseRequestIdForTraceSampling(); v != nil {
			out.NoRequestID = !v.GetValue()
		}
		if v := e.GetEnableIstioTags(); v != nil {
			istioTags = v.GetValue()
		}
		if v := e.GetDisableContextPropagation(); v != nil {
			out.NoPropagation = v.GetValue()
		}
		if len(e.GetCustomTags()) > 0 {
			out.Tags = listOf(tagsOf(e.GetCustomTags()))
		}
	}
	collector := s.Mesh.Tracers[strings.ToLower(provider)]
	cluster, ok := collectorCluster(s, sc, collector)
	if !ok || !out.On {
		return snapshot.Tracing{} // as with Istio, without a provider there is no tracing
	}
	out.Collector, out.Cluster, out.Host = collector, cluster, collector.Host()
	spec := providerOf(collector)
	out.MaxPathTag = cmp.Or(spec.GetZipkin().GetMaxTagLength(), spec.GetOpentelemetry().GetMaxTagLength(), out.MaxPathTag)
	if spec.GetOpentelemetry() != nil {
		out.Workload = workloadName(n, labels)
	}
	if istioTags {
		out.Tags = withIstioTags(out.Tags, n, labels)
	}
	return out
}

func tagsOf(tags map[string]*telemetryv1alpha1.Tracing_CustomTag) []snapshot.TraceTag {
	var out []snapshot.TraceTag
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		tag := tags[name]
		out = append(out, snapshot.TraceTag{
			Name: name, Literal: tag.GetLiteral().GetValue(), Environment: tag.GetEnvironment().GetName(),
			Header: tag.GetHeader().GetName(), Format: tag.GetFormatter().GetValue(),
			Default: cmp.Or(tag.GetEnvironment().GetDefaultValue(), tag.GetHeader().GetDefaultValue()),
		})
	}
	return out
}

// workloadName returns the name of a workload in spans, as Istio's agent makes it.
func workloadName(n Node, labels map[string]string) string {
	return cmp.Or(labels["app"], canonicalName(n, labels)) + "." + n.Namespace
}

// canonicalName returns the canonical name of a workload: by its labels, else the name of
// its pod.
func canonicalName(n Node, labels map[string]string) string {
	return mesh.CanonicalName(labels, n.Metadata["WORKLOAD_NAME"], n.ID.Name)
}

// withIstioTags adds tags with the workload.
func withIstioTags(tags list[snapshot.TraceTag], n Node, labels map[string]string) list[snapshot.TraceTag] {
	out := tags.Slice()
	for name, value := range map[string]string{
		"istio.canonical_service":  canonicalName(n, labels),
		"istio.canonical_revision": mesh.CanonicalRevision(labels),
		"istio.cluster_id":         string(n.Cluster),
		"istio.mesh_id":            cmp.Or(n.MeshID, "unknown"),
		"istio.namespace":          n.Namespace,
	} {
		out = append(out, snapshot.TraceTag{Name: name, Literal: value})
	}
	slices.SortStableFunc(out, func(a, b snapshot.TraceTag) int { return strings.Compare(a.Name, b.Name) })
	return listOf(out)
}

func providerOf(c snapshot.Collector) *meshv1alpha1.MeshConfig_ExtensionProvider {
	var out meshv1alpha1.MeshConfig_ExtensionProvider
	if err := proto.Unmarshal([]byte(c.Spec), &out); err != nil {
		panic("xdsgen: " + err.Error()) // the registry encoded it
	}
	return &out
}

// tracing returns the tracing of a connection manager. Without a collector it names no
// provider: Envoy uses the one in its bootstrap, and sends no spans without one.
func (g *generator) tracing(t snapshot.Tracing) *hcmv3.HttpConnectionManager_Tracing {
	if !t.On {
		return nil
	}
	out := &hcmv3.HttpConnectionManager_Tracing{
		ClientSampling:       &typev3.Percent{Value: 100},
		RandomSampling:       &typev3.Percent{Value: t.Sampling},
		OverallSampling:      &typev3.Percent{Value: 100},
		NoContextPropagation: t.NoPropagation,
	}
	if t.MaxPathTag != 0 {
		out.MaxPathTagLength = wrapperspb.UInt32(t.MaxPathTag)
	}
	for tag := range t.Tags.All {
		out.CustomTags = append(out.CustomTags, customTag(&tag))
	}
	if t.Cluster != "" {
		out.Provider = g.traceProvider(t)
	}
	return out
}

func customTag(t *snapshot.TraceTag) *tagv3.CustomTag {
	out := &tagv3.CustomTag{Tag: t.Name}
	switch {
	case t.Environment != "":
		out.Type = &tagv3.CustomTag_Environment_{Environment: &tagv3.CustomTag_Environment{Name: t.Environment, DefaultValue: t.Default}}
	case t.Header != "":
		out.Type = &tagv3.CustomTag_RequestHeader{RequestHeader: &tagv3.CustomTag_Header{Name: t.Header, DefaultValue: t.Default}}
	case t.Format != "":
		out.Type = &tagv3.CustomTag_Value{Value: t.Format}
	default:
		out.Type = &tagv3.CustomTag_Literal_{Literal: &tagv3.CustomTag_Literal{Value: t.Literal}}
	}
	return out
}

// collectorTimeout bounds a call to a collector, unless the provider sets another timeout.
const collectorTimeout = 10 * time.Second

func (g *generator) traceProvider(t snapshot.Tracing) *tracev3.Tracing_Http {
	spec := providerOf(t.Collector)
	if z := spec.GetZipkin(); z != nil {
		return &tracev3.Tracing_Http{Name: "envoy.tracers.zipkin", ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: g.any(zipkin(t, z))}}
	}
	otel := spec.GetOpentelemetry()
	c := &tracev3.OpenTelemetryConfig{ServiceName: t.Workload}
	if h := otel.GetHttp(); h != nil {
		c.HttpService = collectorHTTP(t, h.GetPath(), h.GetTimeout(), h.GetHeaders())
	} else {
		c.GrpcService = collectorGRPC(t.Cluster, t.Host)
		if d := otel.GetGrpc().GetTimeout(); d != nil {
			c.GrpcService.Timeout = d
		}
		for _, h := range otel.GetGrpc().GetInitialMetadata() {
			c.GrpcService.InitialMetadata = append(c.GrpcService.InitialMetadata, &corev3.HeaderValue{Key: strings.ToLower(h.GetName()), Value: h.GetValue()})
		}
	}
	if otel.GetResourceDetectors().GetEnvironment() != nil {
		c.ResourceDetectors = []*corev3.TypedExtensionConfig{{
			Name:        "envoy.tracers.opentelemetry.resource_detectors.environment",
			TypedConfig: g.any(&detectorsv3.EnvironmentResourceDetectorConfig{}),
		}}
	}
	return &tracev3.Tracing_Http{Name: "envoy.tracers.opentelemetry", ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: g.any(c)}}
}

func collectorGRPC(cluster, host string) *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster, Authority: host}},
		Timeout:         durationpb.New(collectorTimeout),
	}
}

func collectorHTTP(t snapshot.Tracing, path string, timeout *durationpb.Duration, headers []*meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader) *corev3.HttpService {
	if timeout == nil {
		timeout = durationpb.New(collectorTimeout)
	}
	out := &corev3.HttpService{HttpUri: &corev3.HttpUri{
		Uri:              "http://" + net.JoinHostPort(t.Host, portString(t.Collector.Port)) + path,
		HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: t.Cluster}, Timeout: timeout,
	}}
	for _, h := range headers {
		out.RequestHeadersToAdd = append(out.RequestHeadersToAdd, &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		})
	}
	return out
}

func zipkin(t snapshot.Tracing, z *meshv1alpha1.MeshConfig_ExtensionProvider_ZipkinTracingProvider) *tracev3.ZipkinConfig {
	path := cmp.Or(z.GetPath(), "/api/v2/spans")
	out := &tracev3.ZipkinConfig{
		CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON, TraceId_128Bit: !z.GetEnable_64BitTraceId(),
		SharedSpanContext: no, TraceContextOption: tracev3.ZipkinConfig_TraceContextOption(z.GetTraceContextOption()),
	}
	if z.GetTimeout() != nil || len(z.GetHeaders()) > 0 {
		out.CollectorService = collectorHTTP(t, path, z.GetTimeout(), z.GetHeaders())
		return out
	}
	out.CollectorCluster, out.CollectorEndpoint, out.CollectorHostname = t.Cluster, path, t.Host
	return out
}
