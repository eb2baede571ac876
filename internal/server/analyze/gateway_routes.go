package analyze

import (
	"maps"
	"slices"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// subsetsOfSidecars finds the destinations at gateways without a subset whose host has routes
// to subsets only for sidecars.
func (m *checker) subsetsOfSidecars() {
	split := map[string]*snapshot.VirtualService{} // by host
	for _, v := range until(m, m.virtual) {
		if !slices.Contains(v.Gateways, snapshot.MeshGateway) {
			continue
		}
		for _, r := range v.HTTP {
			for _, d := range r.GetRoute() {
				to := d.GetDestination()
				if first := split[to.GetHost()]; first == nil && to.GetSubset() != "" && slices.Contains(v.Hosts, to.GetHost()) {
					split[to.GetHost()] = v
				}
			}
		}
	}
	for _, v := range until(m, m.virtual) {
		if len(v.Gateways) == 1 && v.Gateways[0] == snapshot.MeshGateway {
			continue
		}
		for i, r := range v.HTTP {
			for j, d := range r.GetRoute() {
				to := d.GetDestination()
				other := split[to.GetHost()]
				if to.GetSubset() != "" || other == nil || other == v {
					continue
				}
				m.find(codes.IngressRouteRulesNotAffected, v, at(at("spec.http", i)+".route", j)+".destination.subset",
					"is missing: VirtualService %s, which has the subsets of %s, is for sidecars", nameOf(other), to.GetHost())
			}
		}
	}
}

// claims finds conditions on claims of tokens at Gateways whose workloads check no tokens.
func (m *checker) claims(v *snapshot.VirtualService) {
	for i, r := range v.HTTP {
		for j, match := range r.GetMatch() {
			field := claimField(match)
			if field == "" {
				continue
			}
			gateways := match.GetGateways()
			if len(gateways) == 0 {
				gateways = v.Gateways
			}
			for _, name := range gateways {
				gw := m.gatewayNamed(name)
				if gw == nil {
					continue
				}
				proxies := m.selected("", gw.Spec.GetSelector())
				if len(proxies) == 0 && !m.anyTokenCheck(gw.Spec.GetSelector()) {
					m.find(codes.JwtClaimBasedRoutingWithoutRequestAuthN, v, at(at("spec.http", i)+".match", j)+field,
						"no RequestAuthentication can apply to the workloads of Gateway %s: no request to it has claims", name)
					break
				}
				if w := slices.IndexFunc(proxies, func(w *snapshot.Pod) bool { return !m.checksTokens(w) }); w >= 0 {
					m.find(codes.JwtClaimBasedRoutingWithoutRequestAuthN, v, at(at("spec.http", i)+".match", j)+field,
						"no RequestAuthentication applies to workload %s of Gateway %s: no request to it has claims", nameOf(proxies[w]), name)
					break
				}
			}
		}
	}
}

// anyTokenCheck reports whether a RequestAuthentication may apply to a workload with some labels,
// which may have further labels. Its namespace is not known.
func (m *checker) anyTokenCheck(labels map[string]string) bool {
	for _, facts := range m.Snapshot.Namespaces.All() {
		for p := range snapshot.Policies[*securityv1beta1.RequestAuthentication](facts, snapshot.KindRequestAuthentication) {
			if len(snapshot.TargetsOf(p.Spec)) > 0 || !contradicts(p.Spec.GetSelector().GetMatchLabels(), labels) {
				return true
			}
		}
	}
	return false
}

// contradicts reports whether no workload has all labels of both.
func contradicts(a, b map[string]string) bool {
	for k, v := range a {
		if other, both := b[k]; both && other != v {
			return true
		}
	}
	return false
}

// claimField returns the field of a match that refers to a claim, or "".
func claimField(match *networkingv1alpha3.HTTPMatchRequest) string {
	for _, conditions := range []struct {
		field string
		names map[string]*networkingv1alpha3.StringMatch
	}{{".headers", match.GetHeaders()}, {".withoutHeaders", match.GetWithoutHeaders()}} {
		for _, name := range slices.Sorted(maps.Keys(conditions.names)) {
			if _, isClaim := snapshot.ClaimPath(name); isClaim {
				return conditions.field + "[" + name + "]"
			}
		}
	}
	return ""
}

// checksTokens reports whether a RequestAuthentication may apply to a workload.
func (m *checker) checksTokens(w *snapshot.Pod) bool {
	for _, namespace := range []string{w.Namespace, m.Snapshot.Mesh.RootNamespace} {
		for p := range snapshot.Policies[*securityv1beta1.RequestAuthentication](m.Snapshot.Namespaces.Get(namespace), snapshot.KindRequestAuthentication) {
			if len(snapshot.TargetsOf(p.Spec)) > 0 || snapshot.Selects(p.Spec.GetSelector().GetMatchLabels(), w.Labels) {
				return true
			}
		}
	}
	return false
}
