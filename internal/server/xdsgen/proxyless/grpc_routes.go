package proxyless

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// grpcRoutes returns the routes of the calls to a port of a service. They match all hosts, as
// clients may use several. Without a VirtualService, all calls go to the cluster of the same
// name.
func grpcRoutes(g *wire.Generator, name string, routed routes.RoutedHost, retries snapshot.RetryPolicy) *routev3.RouteConfiguration {
	list := []*routev3.Route{{
		Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: name}, RetryPolicy: grpcRetries(retries),
		}},
	}}
	if routed.Virtual != nil {
		list = nil
		c := routes.RouteContext{Gateway: snapshot.MeshGateway, Port: routed.Number, Client: routed.Client, Retries: retries}
		c.Matches(routed.Virtual, func(r *networkingv1alpha3.HTTPRoute, m *networkingv1alpha3.HTTPMatchRequest) bool {
			for _, match := range grpcMatches(m) {
				list = append(list, grpcRoute(g, r, match, c))
			}
			return true
		})
	}
	return &routev3.RouteConfiguration{
		Name: name, VirtualHosts: []*routev3.VirtualHost{{Name: name, Domains: []string{"*"}, Routes: list}},
	}
}

// grpcRoute returns a route with the parts that gRPC reads: destinations with their weights, the
// timeout, retries and faults. A call with another action fails.
func grpcRoute(g *wire.Generator, r *networkingv1alpha3.HTTPRoute, match *routev3.RouteMatch, c routes.RouteContext) *routev3.Route {
	out := &routev3.Route{Match: match}
	if f := routes.Faults(r.GetFault()); f != nil {
		out.TypedPerFilterConfig = map[string]*anypb.Any{filters.FilterFault: g.Any(f)}
	}
	switch {
	case r.GetRedirect() != nil:
		out.Action = &routev3.Route_Redirect{Redirect: routes.Redirect(r.GetRedirect(), c)}
		return out
	case r.GetDirectResponse() != nil:
		out.Action = &routev3.Route_DirectResponse{DirectResponse: routes.DirectResponse(r.GetDirectResponse())}
		return out
	}
	all := routes.RouteAction(g, r, c)
	action := &routev3.RouteAction{}
	switch to := all.GetClusterSpecifier().(type) {
	case *routev3.RouteAction_Cluster:
		action.ClusterSpecifier = to
	case *routev3.RouteAction_WeightedClusters:
		weighted := &routev3.WeightedCluster{}
		for _, w := range to.WeightedClusters.GetClusters() {
			weighted.Clusters = append(weighted.Clusters, &routev3.WeightedCluster_ClusterWeight{Name: w.GetName(), Weight: w.GetWeight()})
		}
		action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weighted}
	}
	if d := r.GetTimeout(); d.AsDuration() > 0 {
		action.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: d}
	}
	retries := c.Retries
	if r.GetRetries() != nil {
		retries = snapshot.RetryPolicyOf(r.GetRetries())
	}
	action.RetryPolicy = grpcRetries(retries)
	out.Action = &routev3.Route_Route{Route: action}
	return out
}

// grpcRetries returns the retries of calls after the states that gRPC knows, or nil for none. For
// conditions of HTTP and of connections, calls are repeated if the server is unavailable.
func grpcRetries(p snapshot.RetryPolicy) *routev3.RetryPolicy {
	if p.Off {
		return nil
	}
	on := []string{"unavailable", "cancelled"}
	if p.On != "" {
		on = nil
		for condition := range strings.SplitSeq(p.On, ",") {
			switch condition = strings.ToLower(strings.TrimSpace(condition)); condition {
			case "cancelled", "deadline-exceeded", "internal", "resource-exhausted":
			case "retriable-4xx", "retriable-headers":
				continue
			default:
				condition = "unavailable"
			}
			if !slices.Contains(on, condition) {
				on = append(on, condition)
			}
		}
	}
	if len(on) == 0 {
		return nil
	}
	out := &routev3.RetryPolicy{RetryOn: strings.Join(on, ","), NumRetries: routes.Attempts(p.Attempts)}
	if p.Backoff > 0 {
		out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(p.Backoff)}
	}
	return out
}

// maxWithoutHeaders bounds the conditions of a match on the values of headers that a call must
// not have: two routes are made for each.
const maxWithoutHeaders = 4

// grpcMatches returns the conditions of routes that together match the calls of a match, which may
// be nil. A call is a POST request. gRPC cannot check the scheme, the authority, query parameters
// and claims, so a match about these matches no call.
func grpcMatches(m *networkingv1alpha3.HTTPMatchRequest) []*routev3.RouteMatch {
	if m == nil {
		return []*routev3.RouteMatch{{PathSpecifier: &routev3.RouteMatch_Prefix{}}}
	}
	isClaim := func(name string) bool { _, is := snapshot.ClaimPath(name); return is }
	if m.GetScheme() != nil || m.GetAuthority() != nil || len(m.GetQueryParams()) > 0 || !matchesPost(m.GetMethod()) ||
		slices.ContainsFunc(slices.Collect(maps.Keys(m.GetHeaders())), isClaim) ||
		slices.ContainsFunc(slices.Collect(maps.Keys(m.GetWithoutHeaders())), isClaim) {
		return nil
	}
	all := routes.RouteMatch(m)
	out := []*routev3.RouteMatch{{PathSpecifier: all.GetPathSpecifier(), CaseSensitive: all.GetCaseSensitive()}}
	values := 0
	for _, h := range all.GetHeaders() {
		var some []*routev3.HeaderMatcher
		switch {
		case h.GetName() == ":method":
			continue
		case h.GetInvertMatch() && h.GetStringMatch() != nil:
			// gRPC does not compare a header that is missing.
			missing := &routev3.HeaderMatcher{Name: h.GetName(), HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}, InvertMatch: true}
			other := &routev3.HeaderMatcher{Name: h.GetName(), HeaderMatchSpecifier: h.GetHeaderMatchSpecifier(), InvertMatch: true}
			some = []*routev3.HeaderMatcher{missing, other}
			if values++; values > maxWithoutHeaders {
				return nil
			}
		default:
			some = []*routev3.HeaderMatcher{h}
		}
		var next []*routev3.RouteMatch
		for _, match := range out {
			for _, header := range some {
				next = append(next, &routev3.RouteMatch{
					PathSpecifier: match.GetPathSpecifier(), CaseSensitive: match.GetCaseSensitive(), Headers: append(slices.Clip(match.GetHeaders()), header),
				})
			}
		}
		out = next
	}
	return out
}

// matchesPost reports whether POST meets a condition on the method, which may be nil.
func matchesPost(m *networkingv1alpha3.StringMatch) bool {
	switch t := m.GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Exact:
		return t.Exact == "POST"
	case *networkingv1alpha3.StringMatch_Prefix:
		return strings.HasPrefix("POST", t.Prefix)
	case *networkingv1alpha3.StringMatch_Regex:
		matches, err := regexp.MatchString("^(?:"+t.Regex+")$", "POST")
		return matches && err == nil
	}
	return true
}
