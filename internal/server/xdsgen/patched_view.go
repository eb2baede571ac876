package xdsgen

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// patchedView is a view with patches of EnvoyFilters. It shares the units that no patch
// concerns with the view without patches.
type patchedView struct {
	View
	patches list[*snapshot.Patch]
	added   list[*snapshot.Patch] // listeners or clusters to add
}

// patched returns a view with the patches for its type. If there are none, or no view, it
// returns the view itself.
func patched(v View, patches, added []*snapshot.Patch) View {
	if v == nil {
		return nil
	}
	var mine, more []*snapshot.Patch
	for _, p := range patches {
		_, inbound := v.(inboundView)
		if patchesType(p, v.Type(), inbound) {
			mine = append(mine, p)
		}
	}
	for _, p := range added {
		if patchesType(p, v.Type(), false) {
			more = append(more, p)
		}
	}
	if len(mine)+len(more) == 0 {
		return v
	}
	return patchedView{v, listOf(mine), listOf(more)}
}

// patchesType reports whether a patch is for resources of a type. Inbound listeners contain
// their route configurations.
func patchesType(p *snapshot.Patch, typ string, inbound bool) bool {
	switch p.Spec.GetApplyTo() {
	case networkingv1alpha3.EnvoyFilter_CLUSTER:
		return typ == xdswire.ClusterType
	case networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION, networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST, networkingv1alpha3.EnvoyFilter_HTTP_ROUTE:
		return typ == xdswire.RouteType || inbound && typ == xdswire.ListenerType
	}
	return typ == xdswire.ListenerType
}

func (v patchedView) Keys() Keys {
	k := v.View.Keys()
	if !v.added.Empty() {
		k.Listed = append(slices.Clip(k.Listed), Key{Kind: AddedKey})
	}
	return k
}

func (v patchedView) Unit(s *snapshot.Snapshot, k Key) Unit {
	if k.Kind == AddedKey {
		return addedUnit{v.Type(), v.added}
	}
	inner := v.View.Unit(s, k)
	if inner == nil {
		return nil
	}
	var patches []*snapshot.Patch
	for p := range v.patches.All {
		if concerns(p, inner) {
			patches = append(patches, p)
		}
	}
	if len(patches) == 0 {
		return inner
	}
	return patchedUnit{inner, listOf(patches)}
}

// concerns reports whether a patch may concern resources of a unit.
func concerns(p *snapshot.Patch, u Unit) bool {
	l, c, r := p.Spec.GetMatch().GetListener(), p.Spec.GetMatch().GetCluster(), p.Spec.GetMatch().GetRouteConfiguration()
	number, virtual := l.GetPortNumber(), strings.HasPrefix(l.GetName(), "virtual")
	switch u := u.(type) {
	case virtualOutbound:
		return (virtual || l.GetName() == "") && (number == 0 || number == u.port)
	case portListeners:
		return !virtual && (number == 0 || number == u.services.number)
	case boundStreams:
		return !virtual && (number == 0 || number == u.services.number)
	case headlessListeners:
		return !virtual && (number == 0 || u.service.Port(number) != nil)
	case egressListener:
		return !virtual && (number == 0 || number == u.sidecar.Spec.GetEgress()[u.listener].GetPort().GetNumber())
	case fixedClusters:
		return c.GetService() == "" && c.GetSubset() == "" && c.GetPortNumber() == 0 && !strings.Contains(c.GetName(), "|")
	case serviceClusters:
		return (c.GetService() == "" || c.GetService() == u.service.Host) && (c.GetName() == "" || strings.HasSuffix(c.GetName(), u.service.Host))
	case portRoutes:
		return (r.GetPortNumber() == 0 || r.GetPortNumber() == u.services.number) && (r.GetName() == "" || r.GetName() == portString(u.services.number))
	case detectedRoutes:
		return (r.GetPortNumber() == 0 || u.service.Port(r.GetPortNumber()) != nil) && (r.GetName() == "" || strings.HasPrefix(r.GetName(), u.service.Host+":"))
	}
	return true
}

// PatchFault is a patch without effect on a resource, because the result would be invalid.
type PatchFault struct {
	Filter   snapshot.Key // the EnvoyFilter
	Patch    int          // the place of the patch in its list
	Resource string
	Reason   string
}

func (f PatchFault) String() string {
	return fmt.Sprintf("%s: spec.configPatches[%d] has no effect on %s: %s", f.Filter, f.Patch, f.Resource, f.Reason)
}

// PatchFaults reports patches without effect. Generate may return it together with valid
// resources.
type PatchFaults []PatchFault

// Error describes the first one.
func (f PatchFaults) Error() string { return f[0].String() }

// addedUnit generates listeners or clusters that EnvoyFilters add. Of two with one name, the
// first counts. Generated ones go before, see AddedKey.
type addedUnit struct {
	typ   string
	added list[*snapshot.Patch]
}

func (u addedUnit) Type() string { return u.typ }

func (u addedUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := generator{enc: enc}
	var faults PatchFaults
	names := make(map[string]bool)
	for p := range u.added.All {
		m, _ := p.Value.(interface {
			proto.Message
			GetName() string
		})
		if names[m.GetName()] {
			faults = append(faults, PatchFault{p.Of, p.Index, m.GetName(), "an earlier patch adds it"})
			continue
		}
		names[m.GetName()] = true
		g.add(u.typ, m.GetName(), m)
	}
	return withFaults(&g, faults)
}

// withFaults returns the resources, and the faults as an error unless there are none.
func withFaults(g *generator, faults PatchFaults) ([]*xdswire.Resource, error) {
	out, err := g.resources()
	if err == nil && len(faults) > 0 {
		err = faults
	}
	return out, err
}

// maxPatchFaults bounds the faults that a unit reports.
const maxPatchFaults = 1000

// patchedUnit generates the resources of a unit with patches.
type patchedUnit struct {
	Unit
	patches list[*snapshot.Patch]
}

func (u patchedUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	resources, err := u.Unit.Generate(enc)
	if err != nil {
		return nil, err
	}
	g := generator{enc: enc}
	var faults PatchFaults
	for _, r := range resources {
		p := patcher{patches: u.patches, resource: r.Name}
		var out *xdswire.Resource
		switch u.Type() {
		case xdswire.ClusterType:
			out, err = patchResource(enc, u.Type(), r, new(clusterv3.Cluster), p.cluster, &p)
		case xdswire.ListenerType:
			out, err = patchResource(enc, u.Type(), r, new(listenerv3.Listener), p.listener, &p)
		default:
			out, err = p.routes(enc, r, u.routeServers())
		}
		g.fail(err)
		if out != nil {
			g.out = append(g.out, out)
		}
		faults = append(faults, p.faults[:min(len(p.faults), maxPatchFaults-len(faults))]...)
	}
	return withFaults(&g, faults)
}

// patchedCost is about what it costs to apply a patch to a resource, beside the size of its value, as
// bytes: the resource is checked again.
const patchedCost = 1 << 10

// PatchedBy returns the namespace whose EnvoyFilters patch the resources of a unit, about what the
// patches cost for each resource in bytes, and the unit with the patches of the root namespace
// only. It returns "" if there are no others: a proxy gets the patches of two namespaces.
func PatchedBy(u Unit, root string) (namespace string, each int, less Unit) {
	p, ok := u.(patchedUnit)
	if !ok {
		return "", 0, u
	}
	var rest []*snapshot.Patch
	for patch := range p.patches.All {
		if patch.Of.Namespace == root {
			rest = append(rest, patch)
			continue
		}
		namespace = patch.Of.Namespace
		each += patchedCost + proto.Size(patch.Value)
	}
	if less = p.Unit; len(rest) > 0 {
		less = patchedUnit{p.Unit, listOf(rest)}
	}
	return namespace, each, less
}

// Unpatched returns a fault for each patch of a unit that PatchedBy leaves out.
func Unpatched(u Unit, root, resource, reason string) PatchFaults {
	p, ok := u.(patchedUnit)
	if !ok {
		return nil
	}
	var out PatchFaults
	for patch := range p.patches.All {
		if patch.Of.Namespace != root {
			out = append(out, PatchFault{patch.Of, patch.Index, resource, reason})
		}
	}
	return out
}

// routeServers returns the servers of a gateway's route configuration, nil for a sidecar.
func (u patchedUnit) routeServers() []gatewayRouteServer {
	routes, ok := u.Unit.(gatewayRoutes)
	if !ok {
		return nil
	}
	return routes.facts.Servers.Slice()
}

// patchResource patches a resource, and returns nil if a patch removes it.
func patchResource[M proto.Message](enc *xdswire.Encoder, typ string, r *xdswire.Resource, m M, patch func(M) bool, p *patcher) (*xdswire.Resource, error) {
	if err := proto.Unmarshal(r.Message(), m); err != nil {
		return nil, fmt.Errorf("decode %s to patch it: %w", r.Name, err)
	}
	switch {
	case !patch(m):
		return nil, nil
	case !p.changed:
		return r, nil
	}
	return enc.Resource(typ, r.Name, m)
}

// filtersOf returns the EnvoyFilters whose patches change a resource, if that is not known those with
// patches for its type.
func (v patchedView) filtersOf(r *xdswire.Resource, left *int) []snapshot.Key {
	var sure, possible []snapshot.Key
	for p := range v.added.All {
		if m, ok := p.Value.(interface{ GetName() string }); ok && m.GetName() == r.Name {
			sure = addSource(sure, p.Of)
		}
	}
	for patch := range v.patches.All {
		possible = addSource(possible, patch.Of)
		if len(sure) == maxSources {
			break
		}
		if !mayDecode(r, left) {
			if len(possible) == maxSources {
				break
			}
			continue
		}
		p := patcher{patches: listOf([]*snapshot.Patch{patch}), resource: r.Name}
		if p.changes(v.Type(), r); p.changed {
			sure = addSource(sure, patch.Of)
		}
	}
	if len(sure) > 0 {
		return sure
	}
	return possible
}
