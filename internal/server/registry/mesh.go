package registry

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// settingsOf returns the settings of a cluster, or nil.
func (t *tables) settingsOf(r *derive.Reads, id mesh.ClusterID) *snapshot.MeshSettings {
	for _, s := range t.settingsIn.Lookup(r, id) {
		return s
	}
	return nil
}

// meshConfig returns the MeshConfig in settings. Both may be nil.
func meshConfig(s *snapshot.MeshSettings) *meshv1alpha1.MeshConfig {
	if s == nil {
		return nil
	}
	return s.Mesh
}

func (t *tables) meshFacts(r *derive.Reads) *snapshot.Mesh {
	mc := meshConfig(t.meshSettings.Get(r))
	m := &snapshot.Mesh{
		LocalCluster:     t.cfg.Local,
		TrustDomain:      trustDomain(t.cfg.TrustDomain, mc),
		Aliases:          slices.Sorted(slices.Values(mc.GetTrustDomainAliases())),
		Domain:           mesh.DefaultDomain,
		RootNamespace:    cmp.Or(mc.GetRootNamespace(), t.cfg.SystemNamespace),
		RegistryOnly:     mc.GetOutboundTrafficPolicy() != nil && mc.GetOutboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY,
		InboundLocalhost: mc.GetInboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_InboundTrafficPolicy_LOCALHOST,
		OutboundPort:     cmp.Or(uint32(mc.GetProxyListenPort()), mesh.PortOutbound),
		InboundPort:      cmp.Or(uint32(mc.GetProxyInboundListenPort()), mesh.PortInbound),
		HTTPProxyPort:    uint32(max(mc.GetProxyHttpPort(), 0)),
		OutboundStats:    mc.GetOutboundClusterStatName(), InboundStats: mc.GetInboundClusterStatName(),
		ConnectTimeout: 10 * time.Second,
		DNSRefresh:     time.Minute,
		AutoMTLS:       mc.GetEnableAutoMtls() == nil || mc.GetEnableAutoMtls().GetValue(),
		MeshTLS:        tlsLimits(mc.GetMeshMTLS()), TLSDefaults: tlsLimits(mc.GetTlsDefaults()),
		Listeners: snapshot.ListenerSettings{
			NoListenerLog:    mc.GetDisableEnvoyListenerLog(),
			Paths:            pathNormalization(mc.GetPathNormalization().GetNormalization()),
			Tracing:          meshTracing(mc),
			DetectionTimeout: mc.GetProtocolDetectionTimeout().AsDuration(),
		},
		NetworkRanges: t.networkRules.Get(r).ranges,
		DefaultPolicy: t.defaultPolicy.Get(r), LocalityLB: mc.GetLocalityLbSetting(),
		KeepAlive: snapshot.KeepAlive{
			On: mc.GetTcpKeepalive() != nil, Probes: mc.GetTcpKeepalive().GetProbes(),
			Time: mc.GetTcpKeepalive().GetTime().AsDuration(), Interval: mc.GetTcpKeepalive().GetInterval().AsDuration(),
		},
		H2Upgrade: mc.GetH2UpgradePolicy() == meshv1alpha1.MeshConfig_UPGRADE,
		AccessLog: snapshot.AccessLog{
			File: mc.GetAccessLogFile(), Format: mc.GetAccessLogFormat(), JSON: mc.GetAccessLogEncoding() == meshv1alpha1.MeshConfig_JSON,
		},
		LogDefaults: slices.Clone(mc.GetDefaultProviders().GetAccessLogging()),
		Retries:     snapshot.RetryPolicyOf(mc.GetDefaultHttpRetryPolicy()),
	}
	m.Retries.PerTry = 0 // it has no effect
	m.LogProviders = logProviders(mc.GetExtensionProviders(), m.AccessLog)
	m.MetricProviders = metricProviders(mc.GetExtensionProviders())
	m.MetricDefaults = slices.Clone(mc.GetDefaultProviders().GetMetrics())
	m.Tracers, m.Authorizers = tracers(mc), authorizers(mc)
	m.Topology = snapshot.TopologyOf(mc.GetDefaultConfig().GetGatewayTopology())
	m.TraceDefaults = slices.Clone(mc.GetDefaultProviders().GetTracing())
	if len(m.TraceDefaults) == 0 && m.Tracers[ownZipkin].Service != "" {
		m.TraceDefaults = []string{ownZipkin}
	}
	tags := mc.GetDefaultConfig().GetTracing().GetEnableIstioTags()
	m.IstioTags = tags == nil || tags.GetValue()
	for _, c := range mc.GetCaCertificates() {
		m.CACertificates = append(m.CACertificates, snapshot.CACertificate{
			PEM: c.GetPem(), BundleURL: c.GetSpiffeBundleUrl(), TrustDomains: c.GetTrustDomains(),
		})
	}
	if d := mc.GetConnectTimeout(); d.AsDuration() > 0 {
		m.ConnectTimeout = d.AsDuration()
	}
	if d := mc.GetDnsRefreshRate(); d.AsDuration() > 0 {
		m.DNSRefresh = d.AsDuration()
	}
	return m
}

// defaultTrafficPolicy returns the policy of outbound connections by default, or nil.
func (t *tables) defaultTrafficPolicy(r *derive.Reads) *networkingv1alpha3.TrafficPolicy {
	p := meshConfig(t.meshSettings.Get(r)).GetDefaultTrafficPolicy()
	if p == nil {
		return nil
	}
	return &networkingv1alpha3.TrafficPolicy{ConnectionPool: p.ConnectionPool, OutlierDetection: p.OutlierDetection}
}

func equalPolicy(a, b *networkingv1alpha3.TrafficPolicy) bool { return proto.Equal(a, b) }

func tlsLimits(c *meshv1alpha1.MeshConfig_TLSConfig) snapshot.TLSLimits {
	out := snapshot.TLSLimits{Curves: strings.Join(c.GetEcdhCurves(), ":"), Ciphers: strings.Join(c.GetCipherSuites(), ":")}
	switch c.GetMinProtocolVersion() {
	case meshv1alpha1.MeshConfig_TLSConfig_TLSV1_2:
		out.MinVersion = tls.VersionTLS12
	case meshv1alpha1.MeshConfig_TLSConfig_TLSV1_3:
		out.MinVersion = tls.VersionTLS13
	}
	return out
}

// logProviders returns the access logs of the providers, by name in lower case. Unless a
// provider is named envoy, this name stands for the access log of MeshConfig, and for the
// standard output if MeshConfig has no file.
func logProviders(providers []*meshv1alpha1.MeshConfig_ExtensionProvider, own snapshot.AccessLog) map[string]snapshot.AccessLog {
	const builtIn, stdout = "envoy", "/dev/stdout"
	out := make(map[string]snapshot.AccessLog)
	for _, p := range providers {
		name, file := strings.ToLower(p.GetName()), p.GetEnvoyFileAccessLog()
		if _, dup := out[name]; dup {
			continue // the first of a name counts
		}
		if otlp := p.GetEnvoyOtelAls(); otlp != nil {
			out[name] = otlpLog(otlp, own)
		}
		if file == nil {
			continue
		}
		log := snapshot.AccessLog{File: cmp.Or(file.GetPath(), stdout), OmitEmpty: file.GetOmitEmptyValues()}
		switch format := file.GetLogFormat().GetLogFormat().(type) {
		case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider_LogFormat_Text:
			log.Format = format.Text
		case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider_LogFormat_Labels:
			log.JSON = true
			if len(format.Labels.GetFields()) > 0 {
				b, _ := json.Marshal(format.Labels.AsMap()) // a JSON object always encodes
				log.Format = string(b)
			}
		default:
			if name == builtIn && !log.OmitEmpty {
				log.Format, log.JSON = own.Format, own.JSON
			}
		}
		out[name] = log
	}
	if _, ok := out[builtIn]; !ok {
		own.File = cmp.Or(own.File, stdout)
		out[builtIn] = own
	}
	return out
}

// metricProviders returns the names of the providers of metrics, in lower case. Unless another
// provider is named prometheus, this name is one of them.
func metricProviders(providers []*meshv1alpha1.MeshConfig_ExtensionProvider) map[string]bool {
	out := map[string]bool{"prometheus": true}
	for _, p := range slices.Backward(providers) { // the first of a name counts
		out[strings.ToLower(p.GetName())] = p.GetPrometheus() != nil
	}
	return out
}

func pathNormalization(n meshv1alpha1.MeshConfig_ProxyPathNormalization_NormalizationType) snapshot.PathNormalization {
	switch n {
	case meshv1alpha1.MeshConfig_ProxyPathNormalization_NONE:
		return snapshot.KeepPaths
	case meshv1alpha1.MeshConfig_ProxyPathNormalization_MERGE_SLASHES:
		return snapshot.MergeSlashes
	case meshv1alpha1.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES:
		return snapshot.DecodeAndMergeSlashes
	}
	return snapshot.NormalizePaths
}

func equalMesh(a, b *snapshot.Mesh) bool {
	x, y := *a, *b
	x.LocalityLB, y.LocalityLB = nil, nil
	return reflect.DeepEqual(x, y) && proto.Equal(a.LocalityLB, b.LocalityLB)
}

func trustDomain(flag string, mc *meshv1alpha1.MeshConfig) string {
	return cmp.Or(flag, mc.GetTrustDomain(), mesh.DefaultTrustDomain)
}

// clusterTrustDomains returns the trust domains in which the pods of a cluster may have
// identities: the cluster's own and the aliases of the mesh.
func (t *tables) clusterTrustDomains(r *derive.Reads, id mesh.ClusterID) ([]string, bool) {
	local := meshConfig(t.meshSettings.Get(r))
	own := trustDomain(t.cfg.TrustDomain, local)
	if settings := t.settingsOf(r, id); id != t.cfg.Local && settings != nil {
		own = trustDomain("", settings.Mesh)
	}
	return append([]string{own}, slices.Sorted(slices.Values(local.GetTrustDomainAliases()))...), true
}
