package proxyconfig

import (
	"bytes"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"

	"github.com/meshctl/meshctl/internal/mesh"
)

// noDestination stands for the destination of filters that this package does not know.
const noDestination = "Non-HTTP/Non-TCP"

// summarise returns the destination of a chain of network filters: the destination of its first HTTP
// connection manager or TCP proxy. A TCP proxy to the black hole does not count.
func summarise(filters []*listenerv3.Filter) (destination string, http, tcp bool) {
	for _, f := range filters {
		config := f.GetTypedConfig()
		hcm, proxy := new(hcmv3.HttpConnectionManager), new(tcpproxyv3.TcpProxy)
		next := ""
		switch {
		case config.MessageIs(hcm):
			http = true
			if err := config.UnmarshalTo(hcm); err != nil {
				next = err.Error()
			} else {
				next = httpDestination(hcm)
			}
		case config.MessageIs(proxy):
			if bytes.Contains(config.GetValue(), []byte(mesh.BlackHoleCluster)) {
				continue
			}
			tcp = true
			if err := config.UnmarshalTo(proxy); err != nil {
				next = err.Error()
			} else {
				next = tcpDestination(proxy)
			}
		}
		if destination == "" {
			destination = next
		}
	}
	if destination == "" {
		destination = noDestination
	}
	return destination, http, tcp
}

func tcpDestination(proxy *tcpproxyv3.TcpProxy) string {
	if w := proxy.GetWeightedClusters().GetClusters(); len(w) > 0 {
		var names []string
		for _, c := range w {
			names = append(names, c.GetName())
		}
		return "Cluster: " + strings.Join(names, ", ")
	}
	return clusterDestination(proxy.GetCluster())
}

// clusterDestination returns a cluster as a destination. The fixed clusters, all named
// …Cluster, have no prefix.
func clusterDestination(name string) string {
	if strings.Contains(name, "Cluster") {
		return name
	}
	return "Cluster: " + name
}

func httpDestination(hcm *hcmv3.HttpConnectionManager) string {
	switch r := hcm.GetRouteSpecifier().(type) {
	case *hcmv3.HttpConnectionManager_Rds:
		return "Route: " + r.Rds.GetRouteConfigName()
	case *hcmv3.HttpConnectionManager_RouteConfig:
		if cluster := onlyCluster(r.RouteConfig); cluster != "" {
			return clusterDestination(cluster)
		}
		var hosts []string
		for _, vh := range r.RouteConfig.GetVirtualHosts() {
			hosts = append(hosts, inlineHost(vh))
		}
		return "Inline Route: " + strings.Join(hosts, "; ")
	}
	if scoped := hcm.GetScopedRoutes(); scoped != nil {
		return "Scoped Routes: " + scoped.GetName()
	}
	return "HTTP"
}

// onlyCluster returns the cluster that gets every request, if there is one.
func onlyCluster(rc *routev3.RouteConfiguration) string {
	if vhs := rc.GetVirtualHosts(); len(vhs) == 1 {
		if d, r := vhs[0].GetDomains(), vhs[0].GetRoutes(); len(d) == 1 && d[0] == "*" &&
			len(r) == 1 && r[0].GetMatch().GetPrefix() == "/" {
			return r[0].GetRoute().GetCluster()
		}
	}
	return ""
}

func inlineHost(vh *routev3.VirtualHost) string {
	var matches []string
	for match := range routesOf(vh) {
		matches = append(matches, match)
	}
	list := strings.Join(matches, ", ")
	if domains := strings.Join(vh.GetDomains(), "/"); domains != "*" {
		return domains + " " + list
	}
	return list
}

// routeMatch returns the paths that a route matches. It omits headers and query.
func routeMatch(m *routev3.RouteMatch) string {
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		return p.Prefix + "*"
	case *routev3.RouteMatch_PathSeparatedPrefix:
		return "PathPrefix:" + p.PathSeparatedPrefix
	case *routev3.RouteMatch_Path:
		return p.Path
	case *routev3.RouteMatch_SafeRegex:
		return "regex " + p.SafeRegex.GetRegex()
	case *routev3.RouteMatch_ConnectMatcher_:
		return "CONNECT"
	case *routev3.RouteMatch_PathMatchPolicy:
		if texts := textsOf(p.PathMatchPolicy.GetTypedConfig()); len(texts) > 0 {
			return "template " + strings.Join(texts, " ")
		}
		return "template " + p.PathMatchPolicy.GetName()
	}
	return "unknown match"
}
