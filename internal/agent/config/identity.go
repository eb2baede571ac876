package config

import (
	"cmp"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// identity resolves the node and the SPIFFE identity of the workload.
func (r *resolver) identity(cfg *Config) {
	f := r.flags
	kind := mesh.NodeType(cmp.Or(f.Type, string(mesh.Sidecar)))
	name := r.pick("pod-name", f.PodName, "POD_NAME", "")
	namespace := r.pick("pod-namespace", f.PodNamespace, "POD_NAMESPACE", "")
	account := r.pick("service-account", f.ServiceAccount, "SERVICE_ACCOUNT", "")
	domain := r.pick("trust-domain", f.TrustDomain, "TRUST_DOMAIN", mesh.DefaultTrustDomain)
	domain.value = strings.ReplaceAll(domain.value, "@", ".")

	if kind != mesh.Sidecar && kind != mesh.Router {
		r.errorf("--type=%q: want %s or %s", kind, mesh.Sidecar, mesh.Router)
	}
	r.check(name, mesh.IsDNSName, "a pod's name")
	r.check(namespace, mesh.IsDNSLabel, "a namespace")
	r.check(account, mesh.IsDNSName, "a service account")
	r.check(domain, mesh.IsTrustDomain, "a trust domain such as "+mesh.DefaultTrustDomain)

	cfg.Node = mesh.NodeID{
		Type:      kind,
		Name:      name.value,
		Namespace: namespace.value,
		Domain:    cmp.Or(f.Domain, namespace.value+".svc."+mesh.DefaultDomain),
	}
	if !mesh.IsDNSName(cfg.Node.Domain) && namespace.value != "" {
		r.errorf("--domain=%q is not a DNS name", cfg.Node.Domain)
	}
	cfg.Identity = mesh.Identity{TrustDomain: domain.value, Namespace: namespace.value, ServiceAccount: account.value}
	cfg.Cluster = mesh.ClusterID(r.pick("cluster-id", f.ClusterID, "ISTIO_META_CLUSTER_ID", "").value)
}
