package xds

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

func (c meshGenerator) peerAuthentication(cluster mesh.ClusterID) snapshot.Object {
	mode := func() *securityv1beta1.PeerAuthentication_MutualTLS {
		return &securityv1beta1.PeerAuthentication_MutualTLS{Mode: securityv1beta1.PeerAuthentication_MutualTLS_Mode(c.IntN(4))}
	}
	p := &snapshot.PeerAuthentication{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("p", c.IntN(2))), Kind: snapshot.KindPeerAuthentication,
		Spec: &securityv1beta1.PeerAuthentication{Mtls: mode()},
	}
	if c.once(2) {
		p.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
		if c.once(2) {
			p.Spec.PortLevelMtls = map[uint32]*securityv1beta1.PeerAuthentication_MutualTLS{8080: mode(), 7777: mode()}
		}
	}
	return p
}

// collectors returns providers whose services may exist.
func (c meshGenerator) collectors() []*meshv1alpha1.MeshConfig_ExtensionProvider {
	host := func() string { return fmt.Sprintf("svc%d.%s.svc.cluster.local", c.IntN(3), c.namespace()) }
	return []*meshv1alpha1.MeshConfig_ExtensionProvider{
		{Name: "authorizer", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{
			EnvoyExtAuthzGrpc: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider{Service: host(), Port: 80},
		}},
		{Name: "otel", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_Opentelemetry{
			Opentelemetry: &meshv1alpha1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider{Service: host(), Port: 80},
		}},
		{Name: "zipkin", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin{
			Zipkin: &meshv1alpha1.MeshConfig_ExtensionProvider_ZipkinTracingProvider{Service: host(), Port: pickOne[uint32](c, 80, 85)},
		}},
		{Name: "logs", Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOtelAls{
			EnvoyOtelAls: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOpenTelemetryLogProvider{Service: host(), Port: 80},
		}},
	}
}

// trafficExtension returns a TrafficExtension as the source converts it.
func (c meshGenerator) trafficExtension(cluster mesh.ClusterID) snapshot.Object {
	p := c.wasmPlugin(cluster)
	p.Kind = snapshot.KindTrafficExtension
	if c.once(2) {
		code := structpb.NewStringValue(pickOne(c, "a = 1", "a = 2"))
		p.Spec.Url, p.Spec.PluginConfig = "", &structpb.Struct{Fields: map[string]*structpb.Value{snapshot.LuaCode: code}}
		p.Spec.FailStrategy, p.Spec.Type = 0, 0
	}
	return p
}

func (c meshGenerator) wasmPlugin(cluster mesh.ClusterID) *snapshot.WasmPlugin {
	p := &snapshot.WasmPlugin{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("w", c.IntN(2))), Kind: snapshot.KindWasmPlugin,
		Spec: &extensionsv1alpha1.WasmPlugin{
			Url:          pickOne(c, "file:///a", "file:///b", "oci://a"),
			Phase:        extensionsv1alpha1.PluginPhase(c.IntN(4)),
			Priority:     wrapperspb.Int32(int32(c.IntN(2))),
			FailStrategy: extensionsv1alpha1.FailStrategy(c.IntN(3)),
			Type:         extensionsv1alpha1.PluginType(c.IntN(3)),
		},
	}
	if c.once(2) {
		p.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
	}
	if c.once(2) {
		m := &extensionsv1alpha1.WasmPlugin_TrafficSelector{Mode: typev1beta1.WorkloadMode(c.IntN(4))}
		if c.once(2) {
			m.Ports = []*typev1beta1.PortSelector{{Number: pickOne[uint32](c, 80, 85)}}
		}
		p.Spec.Match = []*extensionsv1alpha1.WasmPlugin_TrafficSelector{m}
	}
	return p
}

func (c meshGenerator) requestAuthentication(cluster mesh.ClusterID) snapshot.Object {
	p := &snapshot.RequestAuthentication{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("r", c.IntN(2))), Kind: snapshot.KindRequestAuthentication,
		Spec: &securityv1beta1.RequestAuthentication{},
	}
	if c.once(2) {
		p.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
	}
	for range c.IntN(3) {
		r := &securityv1beta1.JWTRule{Issuer: pickOne(c, "https://a", "https://b"), ForwardOriginalToken: c.once(2)}
		switch c.IntN(3) {
		case 0:
			r.Jwks = keyset.Nobodys
		case 1:
			r.JwksUri = pickOne(c, "https://a/keys", "https://b/keys")
		}
		p.Spec.JwtRules = append(p.Spec.JwtRules, r)
	}
	return p
}

func (c meshGenerator) authorizationPolicy(cluster mesh.ClusterID) snapshot.Object {
	p := &snapshot.AuthorizationPolicy{
		Meta:   c.meta(cluster, c.namespace(), fmt.Sprint("a", c.IntN(3))),
		Spec:   &securityv1beta1.AuthorizationPolicy{Action: securityv1beta1.AuthorizationPolicy_Action(c.IntN(4))},
		DryRun: c.once(4),
	}
	if c.once(2) {
		p.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
	}
	if p.Spec.Selector == nil && c.once(3) { // references that are not understood
		p.Spec.TargetRefs = []*typev1beta1.PolicyTargetReference{{Kind: snapshot.AnyTarget, Name: snapshot.AnyTarget}}
	}
	if p.Spec.Action == securityv1beta1.AuthorizationPolicy_CUSTOM {
		p.Spec.ActionDetail = &securityv1beta1.AuthorizationPolicy_Provider{
			Provider: &securityv1beta1.AuthorizationPolicy_ExtensionProvider{Name: pickOne(c, "authorizer", "none")},
		}
	}
	for i := range c.IntN(3) {
		p.Spec.Rules = append(p.Spec.Rules, &securityv1beta1.Rule{To: []*securityv1beta1.Rule_To{{
			Operation: &securityv1beta1.Operation{Paths: []string{pickOne(c, "/a", "/b")}},
		}}})
		if c.once(4) {
			p.Doubtful = append(p.Doubtful, i)
		}
	}
	return p
}

// keySets returns random results of fetches. No key set is missing: rules would keep earlier
// keys, which a rebuild does not know.
func (c meshGenerator) keySets() map[snapshot.KeySource]string {
	out := make(map[snapshot.KeySource]string)
	for _, source := range []snapshot.KeySource{{URL: "https://a/keys"}, {URL: "https://b/keys"}, {Issuer: "https://a"}, {Issuer: "https://b"}} {
		out[source] = pickOne(c, "keys", "other keys")
	}
	return out
}

func (c meshGenerator) telemetry(cluster mesh.ClusterID) snapshot.Object {
	t := &snapshot.Telemetry{
		Meta: c.meta(cluster, c.namespace(), fmt.Sprint("t", c.IntN(2))), Kind: snapshot.KindTelemetry, Spec: &telemetryv1alpha1.Telemetry{},
	}
	if c.once(2) {
		t.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: c.app()}
	}
	for range c.IntN(3) {
		l := &telemetryv1alpha1.AccessLogging{}
		if !c.once(3) {
			l.Providers = []*telemetryv1alpha1.ProviderRef{{Name: pickOne(c, "envoy", "file", "unknown", "logs")}}
		}
		if c.once(3) {
			l.Disabled = wrapperspb.Bool(c.once(2))
		}
		if c.once(3) {
			l.Match = &telemetryv1alpha1.AccessLogging_LogSelector{Mode: telemetryv1alpha1.WorkloadMode(c.IntN(3))}
		}
		if c.once(3) {
			l.Filter = &telemetryv1alpha1.AccessLogging_Filter{Expression: pickOne(c, "response.code >= 400", "true")}
		}
		t.Spec.AccessLogging = append(t.Spec.AccessLogging, l)
	}
	for range c.IntN(3) {
		e := &telemetryv1alpha1.Tracing{}
		if !c.once(3) {
			e.Providers = []*telemetryv1alpha1.ProviderRef{{Name: pickOne(c, "otel", "zipkin", "unknown")}}
		}
		if c.once(3) {
			e.DisableSpanReporting = wrapperspb.Bool(c.once(2))
		}
		if c.once(3) {
			e.Match = &telemetryv1alpha1.Tracing_TracingSelector{Mode: telemetryv1alpha1.WorkloadMode(c.IntN(3))}
		}
		t.Spec.Tracing = append(t.Spec.Tracing, e)
	}
	for range c.IntN(3) {
		t.Spec.Metrics = append(t.Spec.Metrics, c.metrics())
	}
	if c.once(8) {
		t.Spec.TargetRefs = []*typev1beta1.PolicyTargetReference{{Name: "gw"}}
	}
	return t
}

func (c meshGenerator) metrics() *telemetryv1alpha1.Metrics {
	m := &telemetryv1alpha1.Metrics{}
	if !c.once(3) {
		m.Providers = []*telemetryv1alpha1.ProviderRef{{Name: pickOne(c, "prometheus", "file", "unknown")}}
	}
	for range c.IntN(3) {
		o := &telemetryv1alpha1.MetricsOverrides{}
		if c.once(2) {
			o.Match = &telemetryv1alpha1.MetricSelector{
				MetricMatch: &telemetryv1alpha1.MetricSelector_Metric{Metric: telemetryv1alpha1.MetricSelector_IstioMetric(c.IntN(9))},
				Mode:        telemetryv1alpha1.WorkloadMode(c.IntN(3)),
			}
		}
		if c.once(2) {
			o.Disabled = wrapperspb.Bool(c.once(2))
		}
		if c.once(2) {
			o.TagOverrides = map[string]*telemetryv1alpha1.MetricsOverrides_TagOverride{
				pickOne(c, "source_app", "zone", "method"): {
					Operation: telemetryv1alpha1.MetricsOverrides_TagOverride_Operation(c.IntN(2)), Value: pickOne(c, `"a"`, "request.method"),
				},
			}
		}
		m.Overrides = append(m.Overrides, o)
	}
	return m
}

// envoyFilter returns extensions with colliding names, and filters for every place.
func (c meshGenerator) envoyFilter(cluster mesh.ClusterID) snapshot.Object {
	f := &snapshot.EnvoyFilter{Meta: c.meta(cluster, c.namespace(), fmt.Sprint("f", c.IntN(2))), Priority: int32(c.IntN(2))}
	if c.once(2) {
		f.Selector = c.app()
	}
	for _, name := range []string{"x", "y"} {
		if c.once(2) {
			f.Extensions = append(f.Extensions, snapshot.Extension{
				Name: name, Body: c.encoded(&corev3.TypedExtensionConfig{Name: name, TypedConfig: &anypb.Any{Value: []byte{byte(c.IntN(2))}}}),
			})
		}
	}
	for range c.IntN(4) {
		p := c.patch()
		p.Of, p.Index = f.Key(), len(f.Patches)
		f.Patches = append(f.Patches, p)
	}
	return f
}

// patch returns a patch for any place, with any operation that is possible there.
func (c meshGenerator) patch() *snapshot.Patch {
	spec := &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{
		ApplyTo: networkingv1alpha3.EnvoyFilter_ApplyTo(pickOne(c, 1, 2, 3, 4, 5, 6, 7, 8, 10, 10, 10, 11)),
		Match:   &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch{Context: networkingv1alpha3.EnvoyFilter_PatchContext(c.IntN(4))},
		Patch:   &networkingv1alpha3.EnvoyFilter_Patch{Operation: networkingv1alpha3.EnvoyFilter_Patch_Operation(1 + c.IntN(8))},
	}
	switch spec.ApplyTo {
	case networkingv1alpha3.EnvoyFilter_LISTENER, networkingv1alpha3.EnvoyFilter_FILTER_CHAIN, networkingv1alpha3.EnvoyFilter_CLUSTER:
		spec.Patch.Operation = networkingv1alpha3.EnvoyFilter_Patch_Operation(1 + c.IntN(3))
	case networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION, networkingv1alpha3.EnvoyFilter_BOOTSTRAP:
		spec.Patch.Operation = networkingv1alpha3.EnvoyFilter_Patch_MERGE
	case networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST:
		spec.Patch.Operation = networkingv1alpha3.EnvoyFilter_Patch_Operation(pickOne(c, 1, 2, 3, 7))
	}
	p := &snapshot.Patch{Spec: spec}
	name := pickOne(c, "x", "y", "default")
	switch spec.ApplyTo {
	case networkingv1alpha3.EnvoyFilter_LISTENER:
		p.Value = &listenerv3.Listener{Name: pickOne(c, "x", "10.1.0.1_80"), StatPrefix: name}
	case networkingv1alpha3.EnvoyFilter_LISTENER_FILTER:
		p.Value = &listenerv3.ListenerFilter{Name: name}
	case networkingv1alpha3.EnvoyFilter_FILTER_CHAIN:
		p.Value = &listenerv3.FilterChain{Name: name}
	case networkingv1alpha3.EnvoyFilter_NETWORK_FILTER:
		p.Value = &listenerv3.Filter{Name: name}
	case networkingv1alpha3.EnvoyFilter_HTTP_FILTER:
		p.Value = &hcmv3.HttpFilter{Name: name, IsOptional: c.once(2)}
	case networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION:
		p.Value = &routev3.RouteConfiguration{RequestHeadersToRemove: []string{name}}
	case networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST:
		p.Value = &routev3.VirtualHost{Name: name, Domains: []string{name}}
	case networkingv1alpha3.EnvoyFilter_HTTP_ROUTE:
		p.Value = &routev3.Route{Name: name}
	case networkingv1alpha3.EnvoyFilter_CLUSTER:
		p.Value = &clusterv3.Cluster{Name: name, AltStatName: name}
	case networkingv1alpha3.EnvoyFilter_BOOTSTRAP:
		p.Value = &bootstrapv3.Bootstrap{StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{{Name: name}}}}
		return p // no condition is possible
	}
	if c.once(2) {
		c.patchMatch(spec)
	}
	return p
}

// patchMatch lets a patch apply only to some resources.
func (c meshGenerator) patchMatch(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) {
	number := pickOne[uint32](c, 0, 80, 85, 8080)
	switch p.ApplyTo {
	case networkingv1alpha3.EnvoyFilter_CLUSTER:
		p.Match.ObjectTypes = &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_Cluster{Cluster: &networkingv1alpha3.EnvoyFilter_ClusterMatch{
			PortNumber: number, Service: fmt.Sprintf("svc%d.%s.svc.cluster.local", c.IntN(3), c.namespace()),
		}}
	case networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION, networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST, networkingv1alpha3.EnvoyFilter_HTTP_ROUTE:
		m := &networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch{PortNumber: number}
		if c.once(2) {
			m.Vhost = &networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch_VirtualHostMatch{Name: fmt.Sprintf("svc%d.%s.svc.cluster.local:80", c.IntN(3), c.namespace())}
		}
		p.Match.ObjectTypes = &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_RouteConfiguration{RouteConfiguration: m}
	default:
		m := &networkingv1alpha3.EnvoyFilter_ListenerMatch{PortNumber: number}
		if c.once(2) {
			m.FilterChain = &networkingv1alpha3.EnvoyFilter_ListenerMatch_FilterChainMatch{Filter: &networkingv1alpha3.EnvoyFilter_ListenerMatch_FilterMatch{
				Name: "envoy.filters.network.http_connection_manager", SubFilter: &networkingv1alpha3.EnvoyFilter_ListenerMatch_SubFilterMatch{Name: "envoy.filters.http.cors"},
			}}
		}
		p.Match.ObjectTypes = &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_Listener{Listener: m}
	}
}

func (c meshGenerator) encoded(m proto.Message) string {
	b, err := xdswire.Marshal(m)
	if err != nil {
		panic(err) // these messages are always valid
	}
	return string(b)
}
