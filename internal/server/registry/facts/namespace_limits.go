package facts

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Limits of what the objects of a kind in a namespace become together. Package source limits each
// object alone. The root namespace has no limits: its objects belong to the operator.
const (
	// maxEntryClusters bounds the clusters of ServiceEntries, one for each host and port, and
	// maxEntryParts what the clusters get: endpoints, workloads and addresses.
	maxEntryClusters = 50_000
	maxEntryParts    = 200_000
	// MaxSubsetClusters bounds the clusters of the subsets of DestinationRules, one for each port of
	// their services.
	MaxSubsetClusters = 50_000
	// MaxHostSubsets bounds the subsets that DestinationRules for one host have together.
	MaxHostSubsets = 1_000
	// maxHostCopies bounds the virtual hosts of VirtualServices, one for each host and port or server,
	// and maxRouteBytes the size of their routes.
	maxHostCopies = 20_000
	maxRouteBytes = 64 << 20
	// MaxMatchers bounds the matchers of AuthorizationPolicies, and maxMatcherBytes their size.
	MaxMatchers     = 100_000
	maxMatcherBytes = 16 << 20
	// maxTokenRules bounds the rules of RequestAuthentications, and maxTokenBytes their size with the
	// key sets.
	maxTokenRules = 10_000
	maxTokenBytes = 16 << 20
	// maxPlugins bounds the WasmPlugins, and the TrafficExtensions, of which each listener of their
	// workloads has a filter, and maxPluginBytes their size.
	maxPlugins     = 500
	maxPluginBytes = 8 << 20
	// maxServers bounds the servers of Gateways, of which each may be a listener, and maxServerHosts
	// their hosts.
	maxServers     = 5000
	maxServerHosts = 50_000
)

// amounts are what objects become.
type amounts [2]int

func (a amounts) add(b amounts) amounts { return amounts{a[0] + b[0], a[1] + b[1]} }

func (a amounts) atMost(b amounts) bool { return a[0] <= b[0] && a[1] <= b[1] }

// namespaceLimit limits the objects of a kind.
type namespaceLimit struct {
	Kind snapshot.Kind
	most amounts
	what [2]string // the amounts
	// Beyond holds the objects of a namespace that the limit leaves out.
	Beyond *derive.Table[string, []ObjectKey]
}

func (l *namespaceLimit) Text(namespace string) string {
	return fmt.Sprintf("is not used: with it, the %ss of namespace %s would become more than %d %s or %d %s", l.Kind, namespace, l.most[0], l.what[0], l.most[1], l.what[1])
}

// MaxBeyond bounds the objects of a namespace that are reported for a limit.
const MaxBeyond = 1000

// limited returns the table of the objects that a limit permits. Older objects precede. count
// returns what an object becomes. instead returns what is used in place of an object that is left
// out; it may be nil.
func limited[O interface{ Info() *snapshot.Meta }](t *Tables, objects *derive.Table[ObjectKey, O], l namespaceLimit, count func(*derive.Reads, O) amounts, instead func(O) O) *derive.Table[ObjectKey, O] {
	g, name := t.Graph, string(l.Kind)
	counts := derive.New(g, "amounts of "+name, ObjectKey.Compare, same, func(r *derive.Reads, k ObjectKey) (amounts, bool) {
		o, ok := objects.Get(r, k)
		if !ok || k.Namespace == t.operators(r) {
			return amounts{}, false
		}
		return count(r, o), true
	}, objects)
	countsIn := derive.NewIndex(counts, func(into []string, k ObjectKey, _ amounts) []string { return append(into, k.Namespace) })
	l.Beyond = derive.New(g, name+" beyond the limit", strings.Compare, slices.Equal[[]ObjectKey], func(r *derive.Reads, ns string) ([]ObjectKey, bool) {
		var all amounts
		for _, a := range countsIn.Lookup(r, ns) {
			if all = all.add(a); !all.atMost(l.most) {
				beyond := leftOut(r, objects, countsIn, ns, l.most)
				return beyond, true
			}
		}
		return nil, false
	}, countsIn)
	t.Limits = append(t.Limits, &l)
	return derive.New(g, name+" within the limit", ObjectKey.Compare, func(a, b O) bool { return any(a) == any(b) }, func(r *derive.Reads, k ObjectKey) (O, bool) {
		o, ok := objects.Get(r, k)
		if beyond, _ := l.Beyond.Get(r, k.Namespace); ok && isAmong(beyond, k) {
			if instead == nil {
				return o, false
			}
			o = instead(o)
		}
		return o, ok
	}, objects)
}

// isAmong reports whether sorted keys contain a key.
func isAmong(keys []ObjectKey, k ObjectKey) bool {
	_, found := slices.BinarySearchFunc(keys, k, ObjectKey.Compare)
	return found
}

// leftOut returns the objects of a namespace that do not fit beside older ones, sorted.
func leftOut[O interface{ Info() *snapshot.Meta }](r *derive.Reads, objects *derive.Table[ObjectKey, O], counts *derive.Index[string, ObjectKey, amounts], ns string, most amounts) []ObjectKey {
	type counted struct {
		key    ObjectKey
		object O
		amounts
	}
	var list []counted
	for k, a := range counts.Lookup(r, ns) {
		o, _ := objects.Get(r, k)
		list = append(list, counted{k, o, a})
	}
	slices.SortFunc(list, func(x, y counted) int { return compareAge(x.object, y.object) })
	var all amounts
	var out []ObjectKey
	for _, c := range list {
		if with := all.add(c.amounts); with.atMost(most) {
			all = with
		} else {
			out = append(out, c.key)
		}
	}
	slices.SortFunc(out, ObjectKey.Compare)
	return out
}

// operators returns the root namespace.
func (t *Tables) operators(r *derive.Reads) string {
	return cmp.Or(meshConfig(t.MeshSettings.Get(r)).GetRootNamespace(), t.Cfg.SystemNamespace)
}

// limitedEntries returns the ServiceEntries that the limits permit.
func (t *Tables) limitedEntries() *derive.Table[ObjectKey, *snapshot.ServiceEntry] {
	l := namespaceLimit{Kind: snapshot.KindServiceEntry, most: amounts{maxEntryClusters, maxEntryParts}, what: [2]string{"hosts times ports", "endpoints, workloads and addresses of these"}}
	return limited(t, t.external.Table, l, func(r *derive.Reads, e *snapshot.ServiceEntry) amounts {
		clusters := len(e.Hosts) * max(len(e.Ports), 1)
		parts := len(e.Endpoints)
		if len(e.Selector) > 0 {
			parts = t.workloadsIn.Len(r, e.Namespace) + t.podsIn.Len(r, e.Namespace)
		}
		return amounts{clusters, clusters*parts + len(e.Hosts)*(len(e.VIPs)+len(e.CIDRs)+len(e.ExportTo))}
	}, nil)
}

// limitedPolicies returns the policies of a kind that the limits permit. In place of the others it
// has policies that permit nothing.
func (t *Tables) limitedPolicies(kind snapshot.Kind, policies *derive.Table[ObjectKey, snapshot.Policy]) *derive.Table[ObjectKey, snapshot.Policy] {
	switch kind {
	case snapshot.KindAuthorizationPolicy:
		l := namespaceLimit{Kind: kind, most: amounts{MaxMatchers, maxMatcherBytes}, what: [2]string{"matchers", "bytes of matchers"}}
		return limited(t, policies, l, func(_ *derive.Reads, p snapshot.Policy) amounts {
			if a, ok := p.(*snapshot.AuthorizationPolicy); ok {
				n, bytes := a.Matchers()
				return amounts{n, bytes}
			}
			return amounts{}
		}, func(p snapshot.Policy) snapshot.Policy {
			if a, ok := p.(*snapshot.AuthorizationPolicy); ok {
				return a.Closed()
			}
			return p
		})
	case snapshot.KindRequestAuthentication:
		l := namespaceLimit{Kind: kind, most: amounts{maxTokenRules, maxTokenBytes}, what: [2]string{"rules", "bytes of rules and key sets"}}
		return limited(t, policies, l, func(r *derive.Reads, p snapshot.Policy) amounts {
			out := amounts{len(TokenRules(p)), proto.Size(p.Content())}
			for source := range keySources(p) {
				keys, _ := t.KeySets.Get(r, source)
				out[1] += len(keys)
			}
			return out
		}, withoutKeys)
	case snapshot.KindWasmPlugin, snapshot.KindTrafficExtension:
		l := namespaceLimit{Kind: kind, most: amounts{maxPlugins, maxPluginBytes}, what: [2]string{"plugins", "bytes of plugins"}}
		return limited(t, policies, l, func(_ *derive.Reads, p snapshot.Policy) amounts { return amounts{1, proto.Size(p.Content())} }, nil)
	}
	return policies
}

// limitedGateways returns the Gateways that the limits permit.
func (t *Tables) limitedGateways() *derive.Table[ObjectKey, *snapshot.Gateway] {
	l := namespaceLimit{Kind: snapshot.KindGateway, most: amounts{maxServers, maxServerHosts}, what: [2]string{"servers", "hosts of servers"}}
	return limited(t, t.gateways.Table, l, func(_ *derive.Reads, g *snapshot.Gateway) amounts {
		out := amounts{len(g.Spec.GetServers()), 0}
		for _, server := range g.Spec.GetServers() {
			out[1] += len(server.GetHosts())
		}
		return out
	}, nil)
}

// withoutKeys returns a RequestAuthentication for the same workloads that accepts no token.
func withoutKeys(p snapshot.Policy) snapshot.Policy {
	a, ok := p.(*snapshot.RequestAuthentication)
	if !ok {
		return p
	}
	return &snapshot.RequestAuthentication{Meta: a.Meta, Kind: a.Kind, Spec: &securityv1beta1.RequestAuthentication{
		Selector: a.Spec.GetSelector(), TargetRef: a.Spec.GetTargetRef(), TargetRefs: a.Spec.GetTargetRefs(),
		JwtRules: []*securityv1beta1.JWTRule{{Issuer: "nobody", Jwks: keyset.Nobodys}},
	}}
}

// limitedVirtual returns the VirtualServices that the limits permit.
func (t *Tables) limitedVirtual() *derive.Table[ObjectKey, *snapshot.VirtualService] {
	l := namespaceLimit{Kind: snapshot.KindVirtualService, most: amounts{maxHostCopies, maxRouteBytes}, what: [2]string{"virtual hosts", "bytes of their routes"}}
	return limited(t, t.virtual.Table, l, func(r *derive.Reads, v *snapshot.VirtualService) amounts {
		copies := 0
		for _, name := range v.Gateways {
			if name == snapshot.MeshGateway {
				copies += t.servedPorts(r, v.Hosts) + costOfSearches(v)
				continue
			}
			namespace, name, _ := strings.Cut(name, "/")
			servers := 0
			if gateway, ok := t.gateways.Get(r, ObjectKey{v.Cluster, namespace, name}); ok {
				servers = len(gateway.Spec.GetServers())
			}
			copies += len(v.Hosts) * max(servers, 1)
		}
		return amounts{copies, copies * t.routeBytes(r, v)}
	}, nil)
}

// Searches that take about as long as a virtual host: looking at services for a part of a wildcard,
// looking for it among the wildcards of a name, and finding labels of hosts with TLS or TCP.
const (
	servicesLookedAt = 20
	partialWildcards = 10
	labelsFound      = 8
)

// costOfSearches returns the cost of finding a VirtualService by its hosts, in virtual hosts.
func costOfSearches(v *snapshot.VirtualService) int {
	partial, labels := 0, 0
	for _, host := range v.Hosts {
		if patternOf(host) != host {
			partial++
		}
		if len(v.TLS)+len(v.TCP) > 0 {
			labels += strings.Count(host, ".")
		}
	}
	return partialWildcards*partial + labels/labelsFound
}

// servedPorts returns the number of the ports of some hosts, each at least one. It may stop beyond
// maxHostCopies.
func (t *Tables) servedPorts(r *derive.Reads, hosts []string) int {
	n := 0
	for _, host := range hosts {
		d, _ := t.destinations.Get(r, host)
		n += max(len(d.tcp), 1)
		switch pattern := patternOf(host); {
		case pattern != host: // all services below the pattern are looked at
			n += t.destinationsBelow.Len(r, pattern) / servicesLookedAt
			fallthrough
		case strings.HasPrefix(host, "*"):
			for _, d := range t.covered(r, host) {
				n += len(d.tcp)
			}
		}
		if n > maxHostCopies {
			break
		}
	}
	return n
}

// routeBytes returns the size of the routes of a VirtualService and of its delegates.
func (t *Tables) routeBytes(r *derive.Reads, v *snapshot.VirtualService) int {
	const each = 256 // of a route for one of its matches, beside what the object has
	n := 0
	for _, route := range v.HTTP {
		n += proto.Size(route) + each*max(len(route.GetMatch()), 1)
		if d := route.GetDelegate(); d != nil {
			if to, ok := t.virtual.Get(r, ObjectKey{v.Cluster, d.GetNamespace(), d.GetName()}); ok {
				for _, part := range to.HTTP {
					n += (proto.Size(part) + each*max(len(part.GetMatch()), 1)) * max(len(route.GetMatch()), 1)
				}
			}
		}
	}
	for _, route := range v.TLS {
		n += proto.Size(route)
	}
	for _, route := range v.TCP {
		n += proto.Size(route)
	}
	return n
}
