package registry

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// policies recomputes GatewayConfigs and the policies of dirty namespaces. Where a
// PeerAuthentication changed, it marks the services of the namespace, or all services
// for the root namespace.
func (b *builder) policies() {
	if b.dirty.configs {
		configs := oldestFirst(b.state.gateways, nil)
		if !slices.EqualFunc(b.next.GatewayConfigs, configs, equalConfig) {
			b.changes.Everywhere = true
			b.next.GatewayConfigs = configs
		}
	}
	update := make(map[string]*snapshot.NamespaceFacts)
	for ns := range b.dirty.namespaces {
		old := cmp.Or(b.next.Namespaces.Get(ns), &snapshot.NamespaceFacts{})
		facts := &snapshot.NamespaceFacts{
			Name:         ns,
			Sidecars:     oldestFirst(b.sidecars, &ns),
			PeerAuth:     oldestFirst(b.peerAuth, &ns),
			EnvoyFilters: b.envoyFilters(ns),
			Services:     old.Services,
		}
		mtls := !slices.EqualFunc(old.PeerAuth, facts.PeerAuth, equalConfig)
		if !mtls && slices.EqualFunc(old.Sidecars, facts.Sidecars, equalConfig) && slices.EqualFunc(old.EnvoyFilters, facts.EnvoyFilters, equalFilter) {
			continue
		}
		update[ns] = orNone(facts)
		b.changes.Namespaces[ns] = struct{}{}
		switch {
		case !mtls:
		case ns == b.next.Mesh.RootNamespace:
			b.markAll()
		default:
			for _, c := range b.clusters {
				for n := range c.servicesIn[ns] {
					b.dirty.services.add(n)
					b.dirty.endpoints.add(n)
				}
			}
		}
	}
	b.next.Namespaces = b.next.Namespaces.With(update)
	if b.dirty.filters {
		b.findDuplicateExtensions()
	}
}

// orNone returns f, or nil if it is empty.
func orNone(f *snapshot.NamespaceFacts) *snapshot.NamespaceFacts {
	if len(f.Sidecars)+len(f.PeerAuth)+len(f.EnvoyFilters)+len(f.Services) == 0 {
		return nil
	}
	return f
}

// equalConfig and equalFilter ignore the places of the objects.
func equalConfig[S snapshot.Spec](a, b *snapshot.Config[S]) bool {
	return equalMeta(&a.Meta, &b.Meta) && proto.Equal(a.Spec, b.Spec)
}

func equalFilter(a, b *snapshot.EnvoyFilter) bool {
	x := *a
	x.Meta = b.Meta
	return equalMeta(&a.Meta, &b.Meta) && reflect.DeepEqual(&x, b)
}

func equalMeta(a, b *snapshot.Meta) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && a.Created.Equal(b.Created) && maps.Equal(a.Labels, b.Labels)
}

// oldestFirst returns the objects of one namespace, or of all if ns is nil, sorted by
// creation time, namespace and name.
func oldestFirst[S snapshot.Spec](all map[name]*snapshot.Config[S], ns *string) []*snapshot.Config[S] {
	var out []*snapshot.Config[S]
	for n, o := range all {
		if ns == nil || n.namespace == *ns {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(x, y *snapshot.Config[S]) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return out
}
