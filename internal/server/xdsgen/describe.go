package xdsgen

import (
	"fmt"
	"strings"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/clusters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/extensionconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/gateways"
	"github.com/meshctl/meshctl/internal/server/xdsgen/nametable"
	"github.com/meshctl/meshctl/internal/server/xdsgen/outbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/patch"
	"github.com/meshctl/meshctl/internal/server/xdsgen/plugins"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxyless"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
)

// Describe describes in a few words how a view differs from other views of its type, for
// status pages.
func Describe(v units.View) string { //nolint:funlen // a case for each view
	var words []string
	add := func(what, value string) {
		if value != "" {
			words = append(words, what+" "+value)
		}
	}
	in := func(sc proxy.Scope) {
		if sc.Only == proxy.PrivateServices {
			words = append(words, "private services")
		}
		add("namespace", sc.Namespace)
		if sc.Sidecar != nil {
			add("sidecar", sc.Sidecar.Namespace+"/"+sc.Sidecar.Name)
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
	case clusters.View:
		router(v.Router)
		in(v.Scope)
		of(v.Client)
	case proxyless.GrpcView:
		words = append(words, "gRPC")
		in(v.Scope)
		of(v.Client)
		add("short names of", v.Namespace)
	case endpoints.View:
		router(v.Router)
		if v.Proxyless {
			words = append(words, "gRPC")
		}
		in(v.Scope)
		of(v.Client)
		add("cluster", string(v.Cluster))
		add("network", string(v.Network))
		add("of networks", v.View)
	case gateways.View:
		router(true)
		in(v.Scope)
		of(v.Client)
	case gateways.RouteView:
		router(true)
	case outbound.View:
		in(v.Scope)
		add("cluster", string(v.Cluster))
		add("network", string(v.Network))
	case RoutesWithoutHosts:
		return Describe(v.View)
	case HostView:
		return Describe(v.routes)
	case patch.PatchedView:
		words = append(words, Describe(v.View), "EnvoyFilters")
	case extensionconfig.View:
		for _, name := range v.Names() {
			add("extension", name)
		}
	case plugins.PulledPlugins:
		for p := range v.Plugins.All {
			add("extension", plugins.PluginName(p))
		}
		add("namespace", v.Namespace)
		add("cluster", string(v.Cluster))
	case nametable.View:
		in(v.Scope)
		add("cluster", string(v.Cluster))
		add("network", string(v.Network))
	case units.TrustView:
	case patch.BootstrapView:
		words = append(words, "EnvoyFilters")
	case units.Secrets:
		add("namespace", v.Namespace)
		add("cluster", string(v.Cluster))
	case routes.View:
		in(v.Scope)
		add("short names of", v.Namespace)
		add("cluster", string(v.Cluster))
	default:
		return fmt.Sprintf("%T", v)
	}
	return strings.Join(words, ", ")
}
