package patch

import (
	"iter"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

type (
	applyTo   = networkingv1alpha3.EnvoyFilter_ApplyTo
	operation = networkingv1alpha3.EnvoyFilter_Patch_Operation
)

// patcher applies patches to a resource.
type patcher struct {
	patches  wire.List[*snapshot.Patch]
	resource string
	changed  bool // a patch had an effect
	faults   Faults
}

// Of iterates over the patches for a place with certain operations.
func (p *patcher) Of(at applyTo, is func(operation) bool) iter.Seq[*snapshot.Patch] {
	return func(yield func(*snapshot.Patch) bool) {
		for patch := range p.patches.All {
			if patch.Spec.GetApplyTo() == at && is(patch.Spec.GetPatch().GetOperation()) && !yield(patch) {
				return
			}
		}
	}
}

func anyOperation(operation) bool { return true }

func isMerge(o operation) bool {
	return o == networkingv1alpha3.EnvoyFilter_Patch_MERGE || o == networkingv1alpha3.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
}

func isNoMerge(o operation) bool { return !isMerge(o) }

// isInsertion reports whether an operation adds an item to a list.
func isInsertion(o operation) bool {
	switch o {
	case networkingv1alpha3.EnvoyFilter_Patch_ADD, networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE,
		networkingv1alpha3.EnvoyFilter_Patch_INSERT_AFTER, networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST:
		return true
	}
	return false
}

func isNoInsertion(o operation) bool { return !isInsertion(o) }

func (p *patcher) fault(patch *snapshot.Patch, err error) {
	p.faults = append(p.faults, Fault{patch.Of, patch.Index, p.resource, err.Error()})
}

// items describes how patches select the items of a list.
type items[M proto.Message] struct {
	here  func(*snapshot.Patch) bool    // the patch is for this list
	named func(*snapshot.Patch) bool    // the patch names an item
	is    func(*snapshot.Patch, M) bool // the item is the named one, or none is named
	end   func([]M) int                 // where to append
}

// patchItems applies patches to a list and returns the result. It does not change the list,
// but merges change its items.
func patchItems[M proto.Message](p *patcher, patches iter.Seq[*snapshot.Patch], list []M, of items[M]) []M {
	out := slices.Clone(list)
	for patch := range patches {
		if !of.here(patch) {
			continue
		}
		first := slices.IndexFunc(out, func(m M) bool { return of.is(patch, m) })
		insert := func(at int) {
			if at >= 0 {
				value, _ := proto.Clone(patch.Value).(M)
				out, p.changed = slices.Insert(out, at, value), true
			}
		}
		switch o := patch.Spec.GetPatch().GetOperation(); {
		case isMerge(o):
			for _, m := range out {
				if of.is(patch, m) {
					p.merge(patch, m)
				}
			}
		case o == networkingv1alpha3.EnvoyFilter_Patch_ADD, o == networkingv1alpha3.EnvoyFilter_Patch_INSERT_AFTER && !of.named(patch):
			insert(of.end(out))
		case o == networkingv1alpha3.EnvoyFilter_Patch_INSERT_AFTER:
			if first >= 0 {
				insert(max(min(first+1, of.end(out)), 0))
			}
		case o == networkingv1alpha3.EnvoyFilter_Patch_INSERT_BEFORE && of.named(patch):
			insert(first)
		case isInsertion(o):
			insert(0)
		case o == networkingv1alpha3.EnvoyFilter_Patch_REMOVE:
			n := len(out)
			out = slices.DeleteFunc(out, func(m M) bool { return of.is(patch, m) })
			p.changed = p.changed || len(out) < n
		case first >= 0:
			for i, m := range out {
				if of.is(patch, m) {
					out[i], _ = proto.Clone(patch.Value).(M)
				}
			}
			p.changed = true
		}
	}
	return out
}

// changes applies the patches to a copy of a resource.
func (p *patcher) changes(typ string, r *xdswire.Resource) {
	switch typ {
	case xdswire.ClusterType:
		m := new(clusterv3.Cluster)
		if proto.Unmarshal(r.Message(), m) == nil {
			p.changed = !p.Cluster(m) || p.changed
		}
	case xdswire.ListenerType:
		m := new(listenerv3.Listener)
		if proto.Unmarshal(r.Message(), m) == nil {
			p.changed = !p.Listener(m) || p.changed
		}
	case xdswire.RouteType:
		m := new(routev3.RouteConfiguration)
		if proto.Unmarshal(r.Message(), m) == nil {
			p.routeConfiguration(m, nil)
		}
	}
}
