package patch

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/extensionconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/plugins"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

const (
	// MaxSearched bounds the bytes that SourcesOf decodes for all refused resources of a response: a
	// proxy may refuse thousands of them, with hundreds of patches each.
	MaxSearched = 32 << 20
	// maxSources bounds the objects of a resource.
	maxSources = 10
)

// SourcesOf returns the objects that most likely made a proxy refuse a resource of a view, as KIND
// NAMESPACE/NAME: the EnvoyFilters that changed it, else the object that it is made from. It is empty
// if no single kind of object decides about the resource. left is what remains of MaxSearched.
func SourcesOf(v units.View, r *xdswire.Resource, left *int) []string {
	var out []string
	add := func(kind snapshot.Kind, namespace, name string) {
		out = addSource(out, string(kind)+" "+namespace+"/"+name)
	}
	if p, ok := v.(PatchedView); ok {
		for _, key := range p.filtersOf(r, left) {
			add(key.Kind, key.Namespace, key.Name)
		}
		v = p.View
	}
	if len(out) > 0 {
		return out
	}
	switch v := v.(type) {
	case extensionconfig.View:
		for e := range v.Extensions.All {
			if e.Name == r.Name && e.Of.Name != "" {
				add(e.Of.Kind, e.Of.Namespace, e.Of.Name)
			}
		}
	case plugins.PulledPlugins:
		for p := range v.Plugins.All {
			if plugins.PluginName(p) == r.Name {
				add(p.Key().Kind, p.Namespace, p.Name)
			}
		}
	case units.Secrets:
		name := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(r.Name, units.GatewaySecretPrefix), units.SecretPrefix), units.CASuffix)
		if !strings.Contains(name, "/") {
			name = v.Namespace + "/" + name
		}
		namespace, name, _ := strings.Cut(name, "/")
		add(snapshot.KindSecret, namespace, name)
	default:
		if !mayDecode(r, left) {
			break
		}
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

// addSource adds an object once, up to maxSources.
func addSource[T comparable](list []T, object T) []T {
	if len(list) < maxSources && !slices.Contains(list, object) {
		list = append(list, object)
	}
	return list
}

// mayDecode reports whether a resource is within what may be decoded, and takes its size from that.
func mayDecode(r *xdswire.Resource, left *int) bool {
	if *left < r.Size() {
		return false
	}
	*left -= r.Size()
	return true
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
