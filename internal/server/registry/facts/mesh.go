package facts

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/registry/providers"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// settingsOf returns the settings of a cluster, or nil.
func (t *Tables) settingsOf(r *derive.Reads, id mesh.ClusterID) *snapshot.MeshSettings {
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

func (t *Tables) meshFacts(r *derive.Reads) *snapshot.Mesh {
	mc := meshConfig(t.MeshSettings.Get(r))
	m := &snapshot.Mesh{
		LocalCluster:     t.Cfg.Local,
		TrustDomain:      trustDomain(t.Cfg.TrustDomain, mc),
		Aliases:          slices.Sorted(slices.Values(mc.GetTrustDomainAliases())),
		Domain:           mesh.DefaultDomain,
		RootNamespace:    cmp.Or(mc.GetRootNamespace(), t.Cfg.SystemNamespace),
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
			Tracing:          providers.Tracing(mc),
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
	m.LogProviders = providers.AccessLogs(mc.GetExtensionProviders(), m.AccessLog)
	m.MetricProviders = providers.Metrics(mc.GetExtensionProviders())
	m.MetricDefaults = slices.Clone(mc.GetDefaultProviders().GetMetrics())
	m.Tracers, m.Authorizers = providers.Collectors(mc), providers.Authorizers(mc)
	m.Topology = snapshot.TopologyOf(mc.GetDefaultConfig().GetGatewayTopology())
	m.TraceDefaults = slices.Clone(mc.GetDefaultProviders().GetTracing())
	if len(m.TraceDefaults) == 0 && m.Tracers[providers.OwnZipkin].Service != "" {
		m.TraceDefaults = []string{providers.OwnZipkin}
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
func (t *Tables) defaultTrafficPolicy(r *derive.Reads) *networkingv1alpha3.TrafficPolicy {
	p := meshConfig(t.MeshSettings.Get(r)).GetDefaultTrafficPolicy()
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
func (t *Tables) clusterTrustDomains(r *derive.Reads, id mesh.ClusterID) ([]string, bool) {
	local := meshConfig(t.MeshSettings.Get(r))
	own := trustDomain(t.Cfg.TrustDomain, local)
	if settings := t.settingsOf(r, id); id != t.Cfg.Local && settings != nil {
		own = trustDomain("", settings.Mesh)
	}
	return append([]string{own}, slices.Sorted(slices.Values(local.GetTrustDomainAliases()))...), true
}

// foundCollectors describes the collectors and the providers of external authorization whose
// services have the port, and the namespaces that see them.
func (t *Tables) foundCollectors(r *derive.Reads) string {
	m := t.Mesh.Get(r)
	at := make(map[snapshot.Collector]bool)
	for _, c := range m.Tracers {
		at[snapshot.Collector{Service: c.Service, Port: c.Port}] = true
	}
	for _, c := range m.Authorizers {
		at[snapshot.Collector{Service: c.Service, Port: c.Port}] = true
	}
	for _, log := range m.LogProviders {
		at[snapshot.Collector{Service: log.Collector.Service, Port: log.Collector.Port}] = true
	}
	var lines []string
	for c := range at {
		if svc, ok := t.MeshServices.Get(r, c.Host()); ok && svc.Port(c.Port) != nil {
			lines = append(lines, fmt.Sprintf("%s:%d %s %v %v", svc.Key, c.Port, svc.Namespace, svc.ExportTo, svc.Rivals))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
