package registry

import (
	"cmp"
	"maps"
	"slices"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func (b *builder) mesh() {
	if !b.dirty.mesh {
		return
	}
	m := b.meshFacts()
	if b.next.Mesh != nil && equalMesh(b.next.Mesh, m) {
		b.dirty.gateways = true // meshNetworks may have changed alone
		b.everything()
		return
	}
	b.next.Mesh = m
	b.changes.Everywhere = true
	b.dirty.gateways = true
	b.everything()
}

func (b *builder) meshFacts() *snapshot.Mesh {
	local := b.cluster(b.cfg.Local)
	var mc *meshv1alpha1.MeshConfig
	if local.settings != nil {
		mc = local.settings.Mesh
	}
	m := &snapshot.Mesh{
		LocalCluster:   b.cfg.Local,
		TrustDomain:    trustDomain(b.cfg.TrustDomain, mc),
		Aliases:        slices.Sorted(slices.Values(mc.GetTrustDomainAliases())),
		Domain:         mesh.DefaultDomain,
		RootNamespace:  cmp.Or(mc.GetRootNamespace(), b.cfg.SystemNamespace),
		RegistryOnly:   mc.GetOutboundTrafficPolicy() != nil && mc.GetOutboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY,
		ConnectTimeout: 10 * time.Second,
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
	for id, c := range b.clusters {
		network := b.cfg.Network[id]
		if ns := c.namespaces[b.cfg.SystemNamespace]; ns != nil && ns.Labels[mesh.LabelNetwork] != "" {
			network = mesh.NetworkID(ns.Labels[mesh.LabelNetwork])
		}
		m.Networks[id] = network
	}
	return m
}

func trustDomain(flag string, mc *meshv1alpha1.MeshConfig) string {
	return cmp.Or(flag, mc.GetTrustDomain(), mesh.DefaultTrustDomain)
}

// trustDomainOf is the trust domain of the pods of a cluster.
func (b *builder) trustDomainOf(c *clusterState) string {
	if c.id == b.cfg.Local || c.settings == nil {
		return b.next.Mesh.TrustDomain
	}
	return trustDomain("", c.settings.Mesh)
}

func equalMesh(a, b *snapshot.Mesh) bool {
	x, y := *a, *b
	same := slices.Equal(x.Aliases, y.Aliases) && slices.Equal(x.KeyExchanges, y.KeyExchanges) && maps.Equal(x.Networks, y.Networks) &&
		slices.EqualFunc(x.CACertificates, y.CACertificates, func(a, b snapshot.CACertificate) bool {
			return a.PEM == b.PEM && a.BundleURL == b.BundleURL && slices.Equal(a.TrustDomains, b.TrustDomains)
		})
	return same && x.LocalCluster == y.LocalCluster && x.TrustDomain == y.TrustDomain &&
		x.Domain == y.Domain && x.RootNamespace == y.RootNamespace && x.RegistryOnly == y.RegistryOnly &&
		x.ConnectTimeout == y.ConnectTimeout && x.AutoMTLS == y.AutoMTLS &&
		x.Listeners == y.Listeners
}
