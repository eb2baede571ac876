package facts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Limits of delegation: a route of a delegate is joined with each route that delegates to it. All
// hosts of the VirtualService get the routes.
const (
	maxDelegatedMatches = 5_000
	maxHostMatches      = 100_000
)

// delegated returns the HTTP routes of a VirtualService, in which the routes of others
// replace the delegating ones. A route without a usable delegate is left out. The result
// shares messages with others, but neither destinations nor retries. why holds the reason for each route that is left out.
func (t *Tables) delegated(r *derive.Reads, v *snapshot.VirtualService) (routes []*networkingv1alpha3.HTTPRoute, why []routeFault) {
	matches, most := 0, min(maxDelegatedMatches, maxHostMatches/max(len(v.Hosts), 1))
	for i, root := range v.HTTP {
		d := root.GetDelegate()
		if d == nil {
			routes = append(routes, proto.CloneOf(root))
			continue
		}
		name := d.GetNamespace() + "/" + d.GetName()
		to, ok := t.virtual.Get(r, ObjectKey{v.Cluster, d.GetNamespace(), d.GetName()})
		fault := func(kind ProblemKind, text string) {
			why = append(why, routeFault{kind: kind, field: fmt.Sprintf("spec.http[%d].delegate", i), text: text})
		}
		switch {
		case !ok:
			fault(MissingReference, "delegate "+name+" does not exist")
		case len(to.Hosts) > 0:
			fault(UnusableDelegate, "delegate "+name+" has hosts, which only the delegating VirtualService may have")
		case !t.virtualExports(r, to).to(v.Namespace, to.Namespace):
			fault(UnusableDelegate, "delegate "+name+" is not exported to namespace "+v.Namespace)
		default:
			for _, part := range to.HTTP {
				if matches += max(len(root.Match), 1) * max(len(part.Match), 1); matches > most {
					fault(UnusableDelegate, fmt.Sprintf("with the routes of delegate %s the VirtualService has more than %d matches: the others are not used", name, most))
					break
				}
				if merged := mergeRoutes(root, part); merged != nil {
					routes = append(routes, merged)
				} else {
					fault(UnusableDelegate, "a route of delegate "+name+" matches requests that the delegating route does not")
				}
			}
		}
	}
	return routes, why
}

// mergeRoutes returns a route of a delegate, completed by the delegating route. It returns
// nil if their matches exclude each other.
func mergeRoutes(root, part *networkingv1alpha3.HTTPRoute) *networkingv1alpha3.HTTPRoute {
	out, _ := proto.Clone(part).(*networkingv1alpha3.HTTPRoute)
	switch {
	case len(root.Match) == 0:
	case len(part.Match) == 0:
		out.Match = root.Match
	default:
		out.Match = nil
		for _, m := range part.Match {
			found := false
			for _, of := range root.Match {
				if merged := mergeMatches(of, m); merged != nil {
					out.Match, found = append(out.Match, merged), true
				}
			}
			if !found {
				return nil
			}
		}
	}
	out.Name = joinNames(root.Name, part.Name)
	out.Rewrite = cmp.Or(out.Rewrite, root.Rewrite)
	out.Timeout = cmp.Or(out.Timeout, root.Timeout)
	out.Retries = cmp.Or(out.Retries, proto.CloneOf(root.Retries))
	out.Fault = cmp.Or(out.Fault, root.Fault)
	if out.Mirror == nil && len(out.Mirrors) == 0 {
		out.Mirror, out.Mirrors = proto.CloneOf(root.Mirror), cloneAll(root.Mirrors)
	}
	out.MirrorPercent = cmp.Or(out.MirrorPercent, root.MirrorPercent) //nolint:staticcheck // the older field
	out.MirrorPercentage = cmp.Or(out.MirrorPercentage, root.MirrorPercentage)
	out.CorsPolicy = cmp.Or(out.CorsPolicy, root.CorsPolicy)
	out.Headers = cmp.Or(out.Headers, root.Headers)
	if len(out.Route) == 0 { // with which these do not go
		out.Rewrite, out.Fault = part.Rewrite, part.Fault
	}
	return out
}

func joinNames(root, part string) string {
	if root == "" || part == "" {
		return root + part
	}
	return root + "-" + part
}

// mergeMatches returns the condition that both hold, or nil if the condition of the
// delegate is not within the other one, as far as that can be known.
func mergeMatches(root, part *networkingv1alpha3.HTTPMatchRequest) *networkingv1alpha3.HTTPMatchRequest {
	ok := within(root.Uri, part.Uri) && within(root.Scheme, part.Scheme) && within(root.Method, part.Method) && within(root.Authority, part.Authority) &&
		allWithin(root.Headers, part.Headers) && allWithin(root.WithoutHeaders, part.WithoutHeaders) && allWithin(root.QueryParams, part.QueryParams) &&
		root.IgnoreUriCase == part.IgnoreUriCase && (root.Port == 0 || part.Port == 0 || root.Port == part.Port)
	gateways, common := mergeGateways(root.Gateways, part.Gateways)
	if !ok || !common || !sameClient(root, part) {
		return nil
	}
	out, _ := proto.Clone(part).(*networkingv1alpha3.HTTPMatchRequest)
	out.Gateways = gateways
	out.SourceNamespace = cmp.Or(out.SourceNamespace, root.SourceNamespace)
	out.SourceLabels = union(root.SourceLabels, part.SourceLabels)
	out.Name = joinNames(root.Name, part.Name)
	out.Uri = cmp.Or(out.Uri, root.Uri)
	out.Scheme = cmp.Or(out.Scheme, root.Scheme)
	out.Method = cmp.Or(out.Method, root.Method)
	out.Authority = cmp.Or(out.Authority, root.Authority)
	out.Headers = union(root.Headers, part.Headers)
	out.WithoutHeaders = union(root.WithoutHeaders, part.WithoutHeaders)
	out.QueryParams = union(root.QueryParams, part.QueryParams)
	out.Port = cmp.Or(out.Port, root.Port)
	out.StatPrefix = cmp.Or(out.StatPrefix, root.StatPrefix)
	return out
}

// mergeGateways returns the gateways for which both conditions hold. It returns false if there are
// none. No gateways mean all.
func mergeGateways(root, part []string) ([]string, bool) {
	if len(root) == 0 || len(part) == 0 {
		return append(slices.Clone(root), part...), true
	}
	both := slices.DeleteFunc(slices.Clone(part), func(g string) bool { return !slices.Contains(root, g) })
	return both, len(both) > 0
}

// sameClient reports whether a client can have the namespace and the labels of both conditions.
func sameClient(root, part *networkingv1alpha3.HTTPMatchRequest) bool {
	for name, value := range part.SourceLabels {
		if other, ok := root.SourceLabels[name]; ok && other != value {
			return false
		}
	}
	return root.SourceNamespace == "" || part.SourceNamespace == "" || root.SourceNamespace == part.SourceNamespace
}

// union returns the entries of both maps. Those of b win.
func union[V any](a, b map[string]V) map[string]V {
	if len(a) == 0 {
		return b
	}
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

func allWithin(root, part map[string]*networkingv1alpha3.StringMatch) bool {
	for name, m := range part {
		if !within(root[name], m) {
			return false
		}
	}
	return true
}

// within reports whether every text that matches part is known to match root. A condition
// that is not set goes with any other, and a regular expression with none.
func within(root, part *networkingv1alpha3.StringMatch) bool {
	switch {
	case root == nil || part == nil:
		return true
	case root.GetRegex() != "" || part.GetRegex() != "":
		return false
	case root.GetExact() != "":
		return part.GetExact() == root.GetExact()
	case root.GetPrefix() != "":
		return strings.HasPrefix(part.GetExact()+part.GetPrefix(), root.GetPrefix()) // one of them is set
	}
	return false
}
