package xdsgen

import (
	"fmt"
	"strings"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Describe describes in a few words how a view differs from other views of its type, for
// status pages.
func Describe(v View) string { //nolint:funlen // a case for each view
	var words []string
	add := func(what, value string) {
		if value != "" {
			words = append(words, what+" "+value)
		}
	}
	in := func(sc scope) {
		if sc.only == privateServices {
			words = append(words, "private services")
		}
		add("namespace", sc.namespace)
		if sc.sidecar != nil {
			add("sidecar", sc.sidecar.Namespace+"/"+sc.sidecar.Name)
		}
	}
	of := func(c snapshot.RuleClient) {
		add("DestinationRules of", c.Namespace)
	}
	router := func(is bool) {
		if is {
			words = append(words, "gateways")
		}
	}
	switch v := v.(type) {
	case clusterView:
		router(v.router)
		in(v.scope)
		of(v.client)
	case grpcView:
		words = append(words, "gRPC")
		in(v.scope)
		of(v.client)
		add("short names of", v.namespace)
	case endpointView:
		router(v.router)
		if v.proxyless {
			words = append(words, "gRPC")
		}
		in(v.scope)
		of(v.client)
		add("cluster", string(v.cluster))
		add("network", string(v.network))
		add("of networks", v.view)
	case gatewayView:
		router(true)
		in(v.scope)
		of(v.client)
	case gatewayRouteView:
		router(true)
	case listenerView:
		in(v.scope)
		add("cluster", string(v.cluster))
		add("network", string(v.network))
	case RoutesWithoutHosts:
		return Describe(v.View)
	case HostView:
		return Describe(v.routes)
	case patchedView:
		words = append(words, Describe(v.View), "EnvoyFilters")
	case extensionView:
		for _, name := range v.names() {
			add("extension", name)
		}
	case PulledPlugins:
		for p := range v.plugins.All {
			add("extension", pluginName(p))
		}
		add("namespace", v.namespace)
		add("cluster", string(v.cluster))
	case nameView:
		in(v.scope)
		add("cluster", string(v.cluster))
		add("network", string(v.network))
	case trustView:
	case bootstrapView:
		words = append(words, "EnvoyFilters")
	case Secrets:
		add("namespace", v.namespace)
		add("cluster", string(v.cluster))
	case routeView:
		in(v.scope)
		add("short names of", v.namespace)
		add("cluster", string(v.cluster))
	default:
		return fmt.Sprintf("%T", v)
	}
	return strings.Join(words, ", ")
}
