package proxyconfig

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

// Route is one route configuration of a proxy.
type Route struct {
	// Name is empty for some configurations of the bootstrap.
	Name string
	// Hosts is the number of virtual hosts.
	Hosts int
	// Entries are the routes of all virtual hosts, in order, without those that pass
	// traffic through unchanged.
	Entries []RouteEntry
	Resource

	static bool // inline in a listener, not from RDS
}

// RouteEntry is one route of one virtual host.
type RouteEntry struct {
	Host string
	// Domains has at most two domains, then the number of the others.
	Domains string
	Match   string
	// Service is the VirtualService of the route, name.namespace, or 404 if the virtual
	// host has no routes.
	Service string
}

// RouteFilter selects route configurations.
type RouteFilter struct {
	// Name is the whole name; empty selects all.
	Name string
	Seen *Seen
}

var routeSection = section{
	what:    "routes",
	typeURL: "type.googleapis.com/envoy.admin.v3.RoutesConfigDump",
	paths: map[string][]string{
		"dynamic_route_configs": {"route_config"},
		"static_route_configs":  {"route_config"},
	},
}

// ReadRoutes reads a config dump and returns the route configurations that the filter
// selects: those from RDS, then the inline ones, each sorted by name, numbers first. With
// resources, each has its JSON. A dump without any is an error.
func ReadRoutes(r io.Reader, f RouteFilter, resources bool) ([]Route, error) {
	return readRows(r, &routeSection, compareRoutes, func(rows []Route, list string, raw jsontext.Value) ([]Route, error) {
		return appendRoute(rows, list, raw, &f, resources)
	})
}

func appendRoute(to []Route, list string, raw jsontext.Value, f *RouteFilter, resources bool) ([]Route, error) {
	m := new(routev3.RouteConfiguration)
	if err := decode(raw, m); err != nil {
		return to, err
	}
	f.Seen.add()
	if f.Name != "" && f.Name != m.GetName() {
		return to, nil
	}
	route := NewRoute(m)
	route.static = list == "static_route_configs"
	err := route.keep(raw, m, resources)
	return append(to, route), err
}

func compareRoutes(a, b Route) int {
	if a.static != b.static {
		if a.static {
			return 1
		}
		return -1
	}
	x, errX := strconv.ParseUint(a.Name, 10, 32)
	y, errY := strconv.ParseUint(b.Name, 10, 32)
	switch {
	case errX == nil && errY == nil:
		return cmp.Or(cmp.Compare(x, y), cmp.Compare(a.Name, b.Name))
	case errX == nil:
		return -1
	case errY == nil:
		return 1
	}
	return cmp.Compare(a.Name, b.Name)
}

// NewRoute summarises a route configuration.
func NewRoute(m *routev3.RouteConfiguration) Route {
	r := Route{Name: m.GetName(), Hosts: len(m.GetVirtualHosts())}
	for _, vh := range m.GetVirtualHosts() {
		// Virtual hosts that were sent one by one have the name of the route configuration, too.
		entry := RouteEntry{Host: strings.TrimPrefix(vh.GetName(), m.GetName()+"/"), Domains: shortDomains(vh.GetDomains())}
		add := func(match, service string) {
			entry.Match, entry.Service = match, service
			r.Entries = append(r.Entries, entry)
		}
		if len(vh.GetRoutes()) == 0 && vh.GetMatcher() == nil {
			add("/*", "404")
		}
		for match, route := range routesOf(vh) {
			if route.GetRoute().GetCluster() != mesh.PassthroughCluster && route.GetName() != mesh.NoRoute {
				add(match, serviceOf(route))
			}
		}
	}
	if m.GetVhds() != nil {
		r.Entries = append(r.Entries, RouteEntry{Host: "-", Domains: "-", Match: "virtual hosts on demand (VHDS)"})
	}
	return r
}

// routesOf iterates over the routes of a virtual host, with the requests that they match. A route is
// nil for an action of the virtual host's matcher that this package cannot read.
func routesOf(vh *routev3.VirtualHost) iter.Seq2[string, *routev3.Route] {
	return func(yield func(string, *routev3.Route) bool) {
		for _, route := range vh.GetRoutes() {
			if !yield(routeMatch(route.GetMatch()), route) {
				return
			}
		}
		for _, a := range actionsOf(vh.GetMatcher()) {
			routes := routesOfAction(a.action)
			if len(routes) == 0 && !yield(a.match, nil) {
				return
			}
			for _, route := range routes {
				if !yield(a.match+"; "+routeMatch(route.GetMatch()), route) {
					return
				}
			}
		}
	}
}

// routesOfAction returns the routes of an action of a virtual host's matcher.
func routesOfAction(action *xdscorev3.TypedExtensionConfig) []*routev3.Route {
	route, list := new(routev3.Route), new(routev3.RouteList)
	switch config := action.GetTypedConfig(); {
	case config.MessageIs(route) && config.UnmarshalTo(route) == nil:
		return []*routev3.Route{route}
	case config.MessageIs(list) && config.UnmarshalTo(list) == nil:
		return list.GetRoutes()
	}
	return nil
}

// serviceOf returns the VirtualService of a route.
func serviceOf(route *routev3.Route) string {
	return configName(route.GetMetadata().GetFilterMetadata()["istio"].GetFields()["config"].GetStringValue())
}

// shortDomains omits redundant names (names with a port, and long forms next to the short
// form) and returns two of the rest.
func shortDomains(domains []string) string {
	if len(domains) == 1 {
		return domains[0]
	}
	kept := slices.DeleteFunc(slices.Clone(domains), func(d string) bool {
		if colons := strings.Count(d, ":"); colons > 0 {
			return colons <= 2 || !strings.HasSuffix(d, "]")
		}
		for _, suffix := range []string{".svc." + mesh.DefaultDomain, ".svc"} {
			if short, ok := strings.CutSuffix(d, suffix); ok && slices.Contains(domains, short) {
				return true
			}
		}
		return false
	})
	if len(kept) == 0 {
		kept = domains // each with a port: better than nothing
	}
	if len(kept) <= 2 {
		return strings.Join(kept, ", ")
	}
	return fmt.Sprintf("%s + %d more...", strings.Join(kept[:2], ", "), len(kept)-2)
}

// RouteTable returns routes in Istio's columns: one row a route if verbose, else one a
// route configuration.
func RouteTable(routes []Route, verbose bool) *output.Table {
	t := &output.Table{Header: []string{"NAME", "VIRTUAL HOSTS"}}
	if verbose {
		t.Header = []string{"NAME", "VHOST NAME", "DOMAINS", "MATCH", "VIRTUAL SERVICE"}
	}
	for _, r := range routes {
		if !verbose {
			t.Rows = append(t.Rows, []string{r.Name, strconv.Itoa(r.Hosts)})
			continue
		}
		for _, e := range r.Entries {
			t.Rows = append(t.Rows, []string{r.Name, e.Host, e.Domains, e.Match, e.Service})
		}
	}
	return t
}
