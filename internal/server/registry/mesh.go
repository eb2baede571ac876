package registry

import (
	"cmp"
	"reflect"
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
	if m := b.meshFacts(); !reflect.DeepEqual(b.next.Mesh, m) {
		b.next.Mesh = m
		b.changes.Everywhere = true
	}
	b.dirty.gateways = true // also if only meshNetworks changed
	b.markAll()
}

func (b *builder) meshFacts() *snapshot.Mesh {
	var mc *meshv1alpha1.MeshConfig
	if b.local.settings != nil {
		mc = b.local.settings.Mesh
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

// trustDomainOf returns the trust domain of the pods of a cluster.
func (b *builder) trustDomainOf(c *clusterState) string {
	if !c.remote || c.settings == nil {
		return b.next.Mesh.TrustDomain
	}
	return trustDomain("", c.settings.Mesh)
}
