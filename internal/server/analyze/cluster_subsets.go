package analyze

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// compareSubsets finds the subsets of the cluster's clients that the gateway of another cluster does
// not know: such requests name the subset in their SNI, and the gateway has no cluster for it.
func (v *clusterView) compareSubsets(far *clusterView) {
	gateway := v.gatewayTo(far)
	if !v.crosses(far) || gateway == nil {
		return
	}
	for _, d := range v.rules {
		for _, svc := range v.ruled(d, snapshot.RuledHost(d)) {
			rule := far.Snapshot.Rules.Get(svc.Key).For(snapshot.RuleClient{Namespace: gateway.Namespace})
			for i, s := range d.Spec.GetSubsets() {
				v.compareSubset(far, d, svc, at("spec.subsets", i), s, rule.Subset(s.GetName()))
			}
		}
	}
}

// compareSubset compares a subset with the one that the gateway of another cluster knows, which may
// be nil.
func (v *clusterView) compareSubset(far *clusterView, d *snapshot.DestinationRule, svc *snapshot.MeshService, field string, s, known *networkingv1alpha3.Subset) {
	selects := func(s *networkingv1alpha3.Subset) bool {
		return slices.ContainsFunc(v.backends[svc.Key][far.id], func(e *snapshot.Endpoint) bool { return e.HasLabels(s.GetLabels()) })
	}
	fix := v.copyTo(far, d)
	switch {
	case !selects(s) || !v.routesTo(svc, s.GetName()):
	case known == nil && far.misnamed(svc.Host, s.GetName()) != nil: // which is a finding itself
	case known == nil && far.hidden(svc, s.GetName()) != nil:
		hidden := far.hidden(svc, s.GetName())
		far.findFix(codes.SubsetMissingInCluster, hidden, far.moveTo(hidden, svc.Namespace), "metadata.namespace",
			"is %s, so the rule does not apply to the east-west gateway, for which only rules of the namespaces %s and %s apply: it refuses the requests that clients in cluster %s send to subset %s of %s, with 503",
			hidden.Namespace, v.gatewayTo(far).Namespace, svc.Namespace, v.id, s.GetName(), svc.Host)
	case known == nil:
		v.findFix(codes.SubsetMissingInCluster, d, fix, field, "subset %s of %s is not defined in cluster %s: its east-west gateway refuses the requests that clients in cluster %s send to the subset, with 503",
			s.GetName(), svc.Host, far.id, v.id)
	case !selects(known):
		v.findFix(codes.SubsetMissingInCluster, d, fix, field+".labels", "subset %s of %s has the labels %s in cluster %s, which no pod there has: requests that clients in cluster %s send there fail with 503",
			s.GetName(), svc.Host, labelText(known.GetLabels()), far.id, v.id)
	case !maps.Equal(s.GetLabels(), known.GetLabels()):
		v.findIn(codes.Warning, codes.SubsetMissingInCluster, d, fix, field+".labels", "subset %s of %s has the labels %s in cluster %s, %s here: the gateway of cluster %s sends requests to other pods than clients in cluster %s want",
			s.GetName(), svc.Host, labelText(known.GetLabels()), far.id, labelText(s.GetLabels()), far.id, v.id)
	}
}

// hidden returns the DestinationRule of the cluster that defines a subset of a service only for clients of
// another namespace, or nil.
func (m *checker) hidden(svc *snapshot.MeshService, subset string) *snapshot.DestinationRule {
	for _, d := range m.rules {
		if d.Namespace != svc.Namespace && snapshot.RuledHost(d) == svc.Host &&
			slices.ContainsFunc(d.Spec.GetSubsets(), func(s *networkingv1alpha3.Subset) bool { return s.GetName() == subset }) {
			return d
		}
	}
	return nil
}

// moveTo returns the command that copies an object to another namespace of its cluster.
func (v *clusterView) moveTo(o snapshot.Object, namespace string) string {
	k := o.Key()
	if o.ReadFrom().File != "" {
		return fmt.Sprintf("set metadata.namespace: %q", namespace)
	}
	return v.copy(k, namespace, v.id)
}

// routesTo reports whether a VirtualService of the cluster sends requests to a subset.
func (v *clusterView) routesTo(svc *snapshot.MeshService, subset string) bool {
	for _, vs := range v.virtual {
		for _, d := range destinations(vs) {
			if to := v.service(d.GetHost(), vs.Namespace); d.GetSubset() == subset && to != nil && to.Key == svc.Key {
				return true
			}
		}
	}
	return false
}

// instead states what a cluster has in place of an object of another one.
func (v *clusterView) instead(o snapshot.Object) string {
	k := o.Key()
	k.Cluster = v.id
	if v.objects[k] != nil {
		return "has another " + string(k.Kind) + " of this name"
	}
	return "has no such " + string(k.Kind)
}

// compareGateways finds services that the cluster's clients call through the gateway of another
// cluster, and that this gateway does not pass on.
func (v *clusterView) compareGateways(far *clusterView) {
	gateway := v.gatewayTo(far)
	if !v.crosses(far) || gateway == nil || len(far.Objects[snapshot.KindKubeGateway]) > 0 {
		return
	}
	var hosts []string // that are passed on
	var own *snapshot.Gateway
	for _, c := range []*clusterView{far, v} {
		for _, gw := range c.Snapshot.GatewayConfigs {
			for _, s := range gw.Spec.GetServers() {
				if s.GetTls().GetMode() != networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH {
					continue
				}
				if c == v {
					own = gw
				} else if s.GetPort().GetNumber() == gateway.Port {
					hosts = append(hosts, s.GetHosts()...)
				}
			}
		}
	}
	var refused []string
	for key, by := range v.backends {
		svc := v.Snapshot.Services.Get(key)
		if len(by[far.id]) > 0 && svc.In(v.id) != nil && svc.Namespace != gateway.Namespace && !slices.ContainsFunc(hosts, func(h string) bool { return passes(h, svc.Host) }) {
			refused = append(refused, svc.Host)
		}
	}
	if len(refused) == 0 {
		return
	}
	slices.Sort(refused)
	fix := "meshctl upgrade" + v.flags(far.id)
	if own != nil {
		fix = v.copyTo(far, own)
	}
	key := snapshot.Key{Kind: snapshot.KindGateway, Cluster: far.id, Namespace: gateway.Namespace, Name: "cross-network-gateway"}
	for _, gw := range far.Snapshot.GatewayConfigs {
		if slices.ContainsFunc(gw.Spec.GetServers(), func(s *networkingv1alpha3.Server) bool {
			return s.GetTls().GetMode() == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH
		}) {
			key = gw.Key()
		}
	}
	field := ""
	if far.objects[key] != nil {
		field = "spec.servers"
	}
	far.findKeyFix(codes.GatewayDoesNotPassOn, key, fix, field, fmt.Sprintf(
		"no server of mode AUTO_PASSTHROUGH at port %d passes on the requests that clients in cluster %s send to cluster %s: requests to %s fail there",
		gateway.Port, v.id, far.id, listed(refused)))
}

// passes reports whether a host of a server includes the host of a service.
func passes(host, service string) bool {
	_, after, two := strings.Cut(host, "/")
	if two {
		host = after
	}
	return host == "*" || snapshot.HostsOverlap(strings.ToLower(host), service)
}
