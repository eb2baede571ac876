package registry

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

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
		LocalCluster:   t.cfg.Local,
		TrustDomain:    trustDomain(t.cfg.TrustDomain, mc),
		Aliases:        slices.Sorted(slices.Values(mc.GetTrustDomainAliases())),
		Domain:         mesh.DefaultDomain,
		RootNamespace:  cmp.Or(mc.GetRootNamespace(), t.cfg.SystemNamespace),
		RegistryOnly:   mc.GetOutboundTrafficPolicy() != nil && mc.GetOutboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY,
		ConnectTimeout: 10 * time.Second,
		DNSRefresh:     time.Minute,
		AutoMTLS:       mc.GetEnableAutoMtls() == nil || mc.GetEnableAutoMtls().GetValue(),
		KeyExchanges:   slices.Clone(mc.GetMeshMTLS().GetEcdhCurves()),
		Listeners: snapshot.ListenerSettings{
			AccessLogFile: mc.GetAccessLogFile(), AccessLogFormat: mc.GetAccessLogFormat(),
			AccessLogJSON:    mc.GetAccessLogEncoding() == meshv1alpha1.MeshConfig_JSON,
			Tracing:          mc == nil || mc.GetEnableTracing(),
			DetectionTimeout: mc.GetProtocolDetectionTimeout().AsDuration(),
		},
		Networks: make(map[mesh.ClusterID]mesh.NetworkID),
	}
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
	maps.Insert(m.Networks, t.allNetworks.Lookup(r, struct{}{}))
	return m
}

func equalMesh(a, b *snapshot.Mesh) bool { return reflect.DeepEqual(a, b) }

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
