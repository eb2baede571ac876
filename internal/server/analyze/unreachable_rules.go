package analyze

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// unreachableRules finds the routes of a VirtualService that earlier ones preclude.
func (m *checker) unreachableRules(v *snapshot.VirtualService) {
	m.precluded(v, "spec.http", rulesOf(v.HTTP, func(r *networkingv1alpha3.HTTPRoute) ([]*networkingv1alpha3.HTTPMatchRequest, bool) {
		return r.GetMatch(), r.GetDelegate() != nil // not all of what the route matches
	}, coversRequest, anyRequest))
	m.precluded(v, "spec.tls", rulesOf(v.TLS, func(r *networkingv1alpha3.TLSRoute) ([]*networkingv1alpha3.TLSMatchAttributes, bool) {
		return r.GetMatch(), false
	}, coversTLS, &networkingv1alpha3.TLSMatchAttributes{}))
	m.precluded(v, "spec.tcp", rulesOf(v.TCP, func(r *networkingv1alpha3.TCPRoute) ([]*networkingv1alpha3.L4MatchAttributes, bool) {
		return r.GetMatch(), false
	}, coversTCP, &networkingv1alpha3.L4MatchAttributes{}))
}

// rule holds, for each match of a route, the earlier match that covers it, or "".
type rule struct {
	matches   int
	coveredBy []string
}

// rulesOf compares each match with all earlier ones. A route without matches has the match
// everything. matchesOf also reports whether a route leaves some of its requests to later
// ones.
func rulesOf[R, M any](routes []R, matchesOf func(R) ([]M, bool), covers func(a, b M) bool, everything M) []rule {
	type earlier struct {
		match M
		name  string
	}
	var before []earlier
	out := make([]rule, len(routes))
	compared, parts := 0, 0
	for i, r := range routes {
		matches, partial := matchesOf(r)
		out[i].matches = len(matches)
		if len(matches) == 0 {
			matches = []M{everything}
		}
		for j, match := range matches {
			by, size := "", partsOf(match)
			if compared += parts * size; compared <= maxComparisons {
				if k := slices.IndexFunc(before, func(e earlier) bool { return covers(e.match, match) }); k >= 0 {
					by = before[k].name
				}
			}
			out[i].coveredBy = append(out[i].coveredBy, by)
			if partial {
				continue
			}
			name := at("", i)
			if out[i].matches > 0 {
				name = at(name+".match", j)
			}
			before = append(before, earlier{match, name})
			parts += size
		}
	}
	return out
}

// maxComparisons bounds the comparisons of parts of matches in one VirtualService.
const maxComparisons = 1_000_000

// precluded adds findings about routes and matches without effect.
func (m *checker) precluded(v *snapshot.VirtualService, field string, rules []rule) {
	for i, r := range rules {
		own := at("", i)
		switch {
		case !slices.Contains(r.coveredBy, ""):
			m.findExtra(codes.VirtualServiceUnreachableRule, v, field+own, "is never used: %s already takes every request that this route matches", field+r.coveredBy[0])
		default:
			for j, by := range r.coveredBy {
				if by != "" {
					m.find(codes.VirtualServiceIneffectiveMatch, v, fmt.Sprintf("%s%s.match[%d]", field, own, j), "has no effect: %s already takes every request that this match selects", field+by)
				}
			}
		}
	}
}

// anyRequest is the match of a route without matches.
var anyRequest = &networkingv1alpha3.HTTPMatchRequest{}

func withoutGateways(m *networkingv1alpha3.HTTPMatchRequest) *networkingv1alpha3.HTTPMatchRequest {
	out, _ := proto.Clone(m).(*networkingv1alpha3.HTTPMatchRequest)
	out.Gateways = nil
	return out
}

// coversRequest reports whether every request that matches b is known to match a.
func coversRequest(a, b *networkingv1alpha3.HTTPMatchRequest) bool {
	return coversURI(a, b) && coversText(a.GetScheme(), b.GetScheme(), false) && coversText(a.GetMethod(), b.GetMethod(), false) &&
		coversText(a.GetAuthority(), b.GetAuthority(), false) &&
		coversTexts(a.GetHeaders(), b.GetHeaders()) && sameTexts(a.GetWithoutHeaders(), b.GetWithoutHeaders()) && coversTexts(a.GetQueryParams(), b.GetQueryParams()) &&
		coversPort(a.GetPort(), b.GetPort()) && coversClient(a.GetGateways(), b.GetGateways(), a.GetSourceLabels(), b.GetSourceLabels(), a.GetSourceNamespace(), b.GetSourceNamespace())
}

func coversURI(a, b *networkingv1alpha3.HTTPMatchRequest) bool {
	if p, ok := a.GetUri().GetMatchType().(*networkingv1alpha3.StringMatch_Prefix); ok && (p.Prefix == "/" || p.Prefix == "") {
		return true // every path begins with a slash
	}
	return a.GetUri() == nil || a.GetIgnoreUriCase() == b.GetIgnoreUriCase() && coversText(a.GetUri(), b.GetUri(), a.GetIgnoreUriCase())
}

// coversText reports whether every text that matches b is known to match a.
func coversText(a, b *networkingv1alpha3.StringMatch, ignoreCase bool) bool {
	if a == nil || proto.Equal(a, b) {
		return true
	}
	fold := func(s string) string {
		if ignoreCase {
			return strings.ToLower(s)
		}
		return s
	}
	switch of := a.GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Prefix:
		prefix := fold(of.Prefix)
		switch to := b.GetMatchType().(type) {
		case *networkingv1alpha3.StringMatch_Exact:
			return strings.HasPrefix(fold(to.Exact), prefix)
		case *networkingv1alpha3.StringMatch_Prefix:
			return strings.HasPrefix(fold(to.Prefix), prefix)
		}
	case *networkingv1alpha3.StringMatch_Exact:
		to, ok := b.GetMatchType().(*networkingv1alpha3.StringMatch_Exact)
		return ok && fold(of.Exact) == fold(to.Exact)
	}
	return false
}

// coversTexts compares conditions on headers or query parameters. A condition without a
// text requires only that there is one.
func coversTexts(a, b map[string]*networkingv1alpha3.StringMatch) bool {
	for name, of := range a {
		to, ok := b[name]
		if !ok || of.GetMatchType() != nil && !coversText(of, to, false) {
			return false
		}
	}
	return true
}

// sameTexts reports whether b has all conditions of a.
func sameTexts(a, b map[string]*networkingv1alpha3.StringMatch) bool {
	for name, of := range a {
		if to, ok := b[name]; !ok || !proto.Equal(of, to) {
			return false
		}
	}
	return true
}

func coversPort(a, b uint32) bool { return a == 0 || a == b }

// coversClient compares the gateways and the workloads to which matches apply. No gateways
// mean all of the VirtualService.
func coversClient(gateways, of []string, labels, ofLabels map[string]string, namespace, ofNamespace string) bool {
	for _, g := range of {
		if len(gateways) > 0 && !slices.Contains(gateways, g) {
			return false
		}
	}
	return (len(gateways) == 0 || len(of) > 0) && snapshot.Selects(labels, ofLabels) && (namespace == "" || namespace == ofNamespace)
}

// partsOf returns how many parts of a match are compared with those of another one.
func partsOf(match any) int {
	n := 1
	if m, ok := match.(interface{ GetDestinationSubnets() []string }); ok {
		n = max(n, len(m.GetDestinationSubnets()))
	}
	if m, ok := match.(interface{ GetSniHosts() []string }); ok {
		n = max(n, len(m.GetSniHosts()))
	}
	if m, ok := match.(*networkingv1alpha3.HTTPMatchRequest); ok {
		n += len(m.GetHeaders()) + len(m.GetWithoutHeaders()) + len(m.GetQueryParams())
	}
	return n
}

// coversTLS reports whether every connection that matches b is known to match a.
func coversTLS(a, b *networkingv1alpha3.TLSMatchAttributes) bool {
	for _, sni := range b.GetSniHosts() {
		covered := func(of string) bool {
			return of == sni || strings.HasPrefix(of, "*") && snapshot.HostsOverlap(of, sni) && len(of) <= len(sni)
		}
		if len(a.GetSniHosts()) > 0 && !slices.ContainsFunc(a.GetSniHosts(), covered) {
			return false
		}
	}
	return (len(a.GetSniHosts()) == 0 || len(b.GetSniHosts()) > 0) && coversPort(a.GetPort(), b.GetPort()) &&
		coversSubnets(a.GetDestinationSubnets(), b.GetDestinationSubnets()) &&
		coversClient(a.GetGateways(), b.GetGateways(), a.GetSourceLabels(), b.GetSourceLabels(), a.GetSourceNamespace(), b.GetSourceNamespace())
}

// coversTCP reports whether every connection that matches b is known to match a.
func coversTCP(a, b *networkingv1alpha3.L4MatchAttributes) bool {
	return coversPort(a.GetPort(), b.GetPort()) && coversSubnets(a.GetDestinationSubnets(), b.GetDestinationSubnets()) &&
		(a.GetSourceSubnet() == "" || a.GetSourceSubnet() == b.GetSourceSubnet()) &&
		coversClient(a.GetGateways(), b.GetGateways(), a.GetSourceLabels(), b.GetSourceLabels(), a.GetSourceNamespace(), b.GetSourceNamespace())
}

// coversSubnets compares address ranges. None means all addresses.
func coversSubnets(a, b []string) bool {
	if len(a) == 0 {
		return true
	}
	for _, text := range b {
		inner, ok := subnet(text)
		if !ok || !slices.ContainsFunc(a, func(of string) bool {
			outer, ok := subnet(of)
			return ok && outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
		}) {
			return false
		}
	}
	return len(b) > 0
}

func subnet(text string) (netip.Prefix, bool) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(ip, ip.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p, err == nil
}
