package patch

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/clusters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/gateways"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/outbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// PatchedView is a view with patches of EnvoyFilters. It shares the units that no patch
// concerns with the view without patches.
type PatchedView struct {
	units.View
	patches wire.List[*snapshot.Patch]
	added   wire.List[*snapshot.Patch] // listeners or clusters to add
}

// patched returns a view with the patches for its type. If there are none, or no view, it
// returns the view itself.
func patched(v units.View, patches, added []*snapshot.Patch) units.View {
	if v == nil {
		return nil
	}
	var mine, more []*snapshot.Patch
	for _, p := range patches {
		_, inbound := v.(inbound.View)
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
	return PatchedView{v, wire.ListOf(mine), wire.ListOf(more)}
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

// Keys implements units.View.
func (v PatchedView) Keys() units.Keys {
	k := v.View.Keys()
	if !v.added.Empty() {
		k.Listed = append(slices.Clip(k.Listed), units.Key{Kind: units.AddedKey})
	}
	return k
}

// Unit implements units.View.
func (v PatchedView) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	if k.Kind == units.AddedKey {
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
	return PatchedUnit{inner, wire.ListOf(patches)}
}

// concerns reports whether a patch may concern resources of a unit.
func concerns(p *snapshot.Patch, u units.Unit) bool {
	l, c, r := p.Spec.GetMatch().GetListener(), p.Spec.GetMatch().GetCluster(), p.Spec.GetMatch().GetRouteConfiguration()
	number, virtual := l.GetPortNumber(), strings.HasPrefix(l.GetName(), "virtual")
	switch u := u.(type) {
	case outbound.VirtualOutbound:
		return (virtual || l.GetName() == "") && (number == 0 || number == u.Port)
	case outbound.PortListeners:
		return !virtual && (number == 0 || number == u.Services.Number)
	case outbound.BoundStreams:
		return !virtual && (number == 0 || number == u.Services.Number)
	case outbound.HeadlessListeners:
		return !virtual && (number == 0 || u.Service.Port(number) != nil)
	case outbound.EgressListener:
		return !virtual && (number == 0 || number == u.Sidecar.Spec.GetEgress()[u.Listener].GetPort().GetNumber())
	case clusters.FixedClusters:
		return c.GetService() == "" && c.GetSubset() == "" && c.GetPortNumber() == 0 && !strings.Contains(c.GetName(), "|")
	case clusters.ServiceClusters:
		return (c.GetService() == "" || c.GetService() == u.Service.Host) && (c.GetName() == "" || strings.HasSuffix(c.GetName(), u.Service.Host))
	case routes.PortRoutes:
		return (r.GetPortNumber() == 0 || r.GetPortNumber() == u.Services.Number) && (r.GetName() == "" || r.GetName() == wire.PortString(u.Services.Number))
	case routes.DetectedRoutes:
		return (r.GetPortNumber() == 0 || u.Service.Port(r.GetPortNumber()) != nil) && (r.GetName() == "" || strings.HasPrefix(r.GetName(), u.Service.Host+":"))
	}
	return true
}

// Fault is a patch without effect on a resource, because the result would be invalid.
type Fault struct {
	Filter   snapshot.Key // the EnvoyFilter
	Patch    int          // the place of the patch in its list
	Resource string
	Reason   string
}

func (f Fault) String() string {
	return fmt.Sprintf("%s: spec.configPatches[%d] has no effect on %s: %s", f.Filter, f.Patch, f.Resource, f.Reason)
}

// Faults reports patches without effect. Generate may return it together with valid
// resources.
type Faults []Fault

// Error describes the first one.
func (f Faults) Error() string { return f[0].String() }

// addedUnit generates listeners or clusters that EnvoyFilters add. Of two with one name, the
// first counts. Generated ones go before, see AddedKey.
type addedUnit struct {
	typ   string
	added wire.List[*snapshot.Patch]
}

func (u addedUnit) Type() string { return u.typ }

func (u addedUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	var faults Faults
	names := make(map[string]bool)
	for p := range u.added.All {
		m, _ := p.Value.(interface {
			proto.Message
			GetName() string
		})
		if names[m.GetName()] {
			faults = append(faults, Fault{p.Of, p.Index, m.GetName(), "an earlier patch adds it"})
			continue
		}
		names[m.GetName()] = true
		g.Add(u.typ, m.GetName(), m)
	}
	return withFaults(&g, faults)
}

// withFaults returns the resources, and the faults as an error unless there are none.
func withFaults(g *wire.Generator, faults Faults) ([]*xdswire.Resource, error) {
	out, err := g.Resources()
	if err == nil && len(faults) > 0 {
		err = faults
	}
	return out, err
}

// maxPatchFaults bounds the faults that a unit reports.
const maxPatchFaults = 1000

// PatchedUnit generates the resources of a unit with patches.
type PatchedUnit struct {
	units.Unit
	patches wire.List[*snapshot.Patch]
}

// Generate implements units.Unit.
func (u PatchedUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	resources, err := u.Unit.Generate(enc)
	if err != nil {
		return nil, err
	}
	g := wire.Generator{Enc: enc}
	var faults Faults
	for _, r := range resources {
		p := patcher{patches: u.patches, resource: r.Name}
		var out *xdswire.Resource
		switch u.Type() {
		case xdswire.ClusterType:
			out, err = patchResource(enc, u.Type(), r, new(clusterv3.Cluster), p.Cluster, &p)
		case xdswire.ListenerType:
			out, err = patchResource(enc, u.Type(), r, new(listenerv3.Listener), p.Listener, &p)
		default:
			out, err = p.Routes(enc, r, u.routeServers())
		}
		g.Fail(err)
		if out != nil {
			g.Out = append(g.Out, out)
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
func PatchedBy(u units.Unit, root string) (namespace string, each int, less units.Unit) {
	p, ok := u.(PatchedUnit)
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
		less = PatchedUnit{p.Unit, wire.ListOf(rest)}
	}
	return namespace, each, less
}

// Unpatched returns a fault for each patch of a unit that PatchedBy leaves out.
func Unpatched(u units.Unit, root, resource, reason string) Faults {
	p, ok := u.(PatchedUnit)
	if !ok {
		return nil
	}
	var out Faults
	for patch := range p.patches.All {
		if patch.Of.Namespace != root {
			out = append(out, Fault{patch.Of, patch.Index, resource, reason})
		}
	}
	return out
}

// routeServers returns the servers of a gateway's route configuration, nil for a sidecar.
func (u PatchedUnit) routeServers() []gateways.GatewayRouteServer {
	routes, ok := u.Unit.(gateways.GatewayRoutes)
	if !ok {
		return nil
	}
	return routes.Facts.Servers.Slice()
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
func (v PatchedView) filtersOf(r *xdswire.Resource, left *int) []snapshot.Key {
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
		p := patcher{patches: wire.ListOf([]*snapshot.Patch{patch}), resource: r.Name}
		if p.changes(v.Type(), r); p.changed {
			sure = addSource(sure, patch.Of)
		}
	}
	if len(sure) > 0 {
		return sure
	}
	return possible
}
