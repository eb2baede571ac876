package xdsgen

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// SourcesOf returns the objects that most likely made a proxy refuse a resource of a view, as KIND
// NAMESPACE/NAME: the EnvoyFilters that changed it, else the object that it is made from. It is empty
// if no single kind of object decides about the resource.
func SourcesOf(v View, r *xdswire.Resource) []string {
	var out []string
	add := func(kind snapshot.Kind, namespace, name string) {
		if text := string(kind) + " " + namespace + "/" + name; !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	if p, ok := v.(patchedView); ok {
		for _, key := range p.filtersOf(r) {
			add(key.Kind, key.Namespace, key.Name)
		}
		v = p.View
	}
	if len(out) > 0 {
		return out
	}
	switch v := v.(type) {
	case extensionView:
		for e := range v.extensions.All {
			if e.name == r.Name && e.of.Name != "" {
				add(e.of.Kind, e.of.Namespace, e.of.Name)
			}
		}
	case PulledPlugins:
		for p := range v.plugins.All {
			if pluginName(p) == r.Name {
				add(p.Key().Kind, p.Namespace, p.Name)
			}
		}
	case Secrets:
		name := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(r.Name, gatewaySecretPrefix), secretPrefix), caSuffix)
		if !strings.Contains(name, "/") {
			name = v.namespace + "/" + name
		}
		namespace, name, _ := strings.Cut(name, "/")
		add(snapshot.KindSecret, namespace, name)
	default:
		for _, config := range configsOf(r, v.Type()) {
			// /apis/networking.istio.io/v1/namespaces/NAMESPACE/destination-rule/NAME
			parts := strings.Split(strings.TrimPrefix(config, "/"), "/")
			if len(parts) == 7 {
				add(map[string]snapshot.Kind{"destination-rule": snapshot.KindDestinationRule, "virtual-service": snapshot.KindVirtualService}[parts[5]], parts[4], parts[6])
			}
		}
	}
	return out
}

// maxDecoded bounds the bytes that filtersOf decodes.
const maxDecoded = 32 << 20

// filtersOf returns the EnvoyFilters whose patches change a resource, if that is not known those with
// patches for its type.
func (v patchedView) filtersOf(r *xdswire.Resource) []snapshot.Key {
	var sure, possible []snapshot.Key
	left := maxDecoded
	for p := range v.added.All {
		if m, ok := p.Value.(interface{ GetName() string }); ok && m.GetName() == r.Name {
			sure = append(sure, p.Of)
		}
	}
	for patch := range v.patches.All {
		possible = append(possible, patch.Of)
		if left -= r.Size(); left < 0 {
			continue
		}
		p := patcher{patches: listOf([]*snapshot.Patch{patch}), resource: r.Name}
		if p.changes(v.Type(), r); p.changed {
			sure = append(sure, patch.Of)
		}
	}
	if len(sure) > 0 {
		return slices.Compact(sure)
	}
	return slices.Compact(possible)
}

// changes applies the patches to a copy of a resource.
func (p *patcher) changes(typ string, r *xdswire.Resource) {
	switch typ {
	case xdswire.ClusterType:
		m := new(clusterv3.Cluster)
		if proto.Unmarshal(r.Message(), m) == nil {
			p.changed = !p.cluster(m) || p.changed
		}
	case xdswire.ListenerType:
		m := new(listenerv3.Listener)
		if proto.Unmarshal(r.Message(), m) == nil {
			p.changed = !p.listener(m) || p.changed
		}
	case xdswire.RouteType:
		m := new(routev3.RouteConfiguration)
		if proto.Unmarshal(r.Message(), m) == nil {
			p.routeConfiguration(m, nil)
		}
	}
}

// configsOf returns the objects that the metadata of a cluster, or of the routes of a route
// configuration, names.
func configsOf(r *xdswire.Resource, typ string) []string {
	var out []string
	add := func(m *corev3.Metadata) {
		if config := m.GetFilterMetadata()["istio"].GetFields()["config"].GetStringValue(); config != "" {
			out = append(out, config)
		}
	}
	switch typ {
	case xdswire.ClusterType:
		m := new(clusterv3.Cluster)
		if proto.Unmarshal(r.Message(), m) == nil {
			add(m.GetMetadata())
		}
	case xdswire.RouteType:
		m := new(routev3.RouteConfiguration)
		if proto.Unmarshal(r.Message(), m) == nil {
			for _, vh := range m.GetVirtualHosts() {
				for _, route := range vh.GetRoutes() {
					add(route.GetMetadata())
				}
			}
		}
	}
	return out
}
