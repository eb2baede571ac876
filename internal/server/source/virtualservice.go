package source

import (
	"fmt"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

var virtualServiceKind = istioKind(kind{
	group: groupNetworking, name: "VirtualService", plural: "virtualservices", versions: istioVersions,
	support: Partly, meaning: "see [its fields](#virtualservice)", fields: virtualServiceFields,
}, (*conversion).virtualService)

func (c *conversion) virtualService(spec *networkingv1alpha3.VirtualService) *FieldError {
	if fault := checkVirtualService(spec); fault != nil {
		return fault
	}
	out := &snapshot.VirtualService{Meta: c.meta, ExportTo: spec.ExportTo, HTTP: spec.Http, TLS: spec.Tls, TCP: spec.Tcp}
	for _, host := range spec.Hosts {
		if full := c.fullHost(host); !slices.Contains(out.Hosts, full) {
			out.Hosts = append(out.Hosts, full)
		}
	}
	for i, r := range spec.Http {
		hosts := hostRewrites(r)
		for j := 1; j < len(hosts); j++ {
			c.warn(noEffect(at("spec.http", i)+hosts[j], strings.TrimPrefix(hosts[0], ".")+" replaces it"))
		}
	}
	out.Gateways = c.fullGateways(spec.Gateways)
	if len(out.Gateways) == 0 {
		out.Gateways = []string{snapshot.MeshGateway}
	}
	c.resolveMatches(spec)
	for d := range out.Destinations {
		d.Host = c.fullHost(d.Host)
	}
	c.object = out
	return nil
}

// fullHost returns a host in its canonical form. A name without a dot is the name of a service in
// the object's namespace.
func (c *conversion) fullHost(host string) string {
	host = mesh.CanonicalHost(host)
	if _, err := parseAddr(host); err == nil || host == "*" || strings.Contains(host, ".") {
		return host
	}
	return mesh.ServiceHost(host, c.meta.Namespace, mesh.DefaultDomain)
}

// fullGateways returns the names of gateways with their namespaces. A name with a dot is
// the older form <name>.<namespace>.svc.cluster.local.
func (c *conversion) fullGateways(names []string) []string {
	var out []string
	for _, name := range names {
		switch namespace, rest, slash := strings.Cut(name, "/"); {
		case name == snapshot.MeshGateway:
		case slash && namespace == ".":
			name = c.meta.Namespace + "/" + rest
		case slash:
		case strings.Contains(name, "."):
			parts := strings.SplitN(name, ".", 3)
			name = parts[1] + "/" + parts[0]
		default:
			name = c.meta.Namespace + "/" + name
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// resolveMatches replaces the names in matches and delegates by full names.
func (c *conversion) resolveMatches(spec *networkingv1alpha3.VirtualService) {
	for _, r := range spec.Http {
		for _, m := range r.Match {
			m.Gateways = c.fullGateways(m.Gateways)
		}
		if r.Delegate != nil && r.Delegate.Namespace == "" {
			r.Delegate.Namespace = c.meta.Namespace
		}
	}
	for _, r := range spec.Tls {
		for _, m := range r.Match {
			m.Gateways = c.fullGateways(m.Gateways)
			for i, sni := range m.SniHosts {
				m.SniHosts[i] = mesh.CanonicalHost(sni)
			}
		}
	}
	for _, r := range spec.Tcp {
		for _, m := range r.Match {
			m.Gateways = c.fullGateways(m.Gateways)
		}
	}
}

func checkVirtualService(v *networkingv1alpha3.VirtualService) *FieldError {
	isDelegate := len(v.Hosts) == 0
	switch {
	case isDelegate && len(v.Gateways) > 0:
		return faultf("hosts", "is empty") // without gateways it may be the target of a delegate
	case isDelegate && len(v.Tls)+len(v.Tcp) > 0:
		return faultf("hosts", "is empty: only HTTP routes can be delegated to")
	case len(v.Hosts) > maxRouteHosts:
		return faultf("hosts", "has %d entries, at most %d are accepted", len(v.Hosts), maxRouteHosts)
	case len(v.Http)+len(v.Tls)+len(v.Tcp) == 0:
		return faultf("", "has no routes: want http, tls or tcp")
	}
	inMesh := len(v.Gateways) == 0 || slices.Contains(v.Gateways, snapshot.MeshGateway)
	faults := allFaults(
		eachText("hosts", v.Hosts, func(field, host string) *FieldError {
			if _, err := parseAddr(host); err == nil {
				return nil
			}
			if host == "*" && inMesh {
				return faultf(field, `"*" would take the requests to every host of all workloads: name gateways, or hosts`)
			}
			return patternFault(field, host)
		}),
		gatewaysFault("gateways", v.Gateways),
		eachText("exportTo", v.ExportTo, ruleExportFault),
		checkHTTPRoutes(v.Http, len(v.Hosts), isDelegate),
	)
	if len(v.Tls)+len(v.Tcp) > maxRoutes {
		return faults.and(faultf("", "has %d routes, at most %d are accepted", len(v.Tls)+len(v.Tcp), maxRoutes))
	}
	return allFaults(
		faults,
		each("tls", v.Tls, func(field string, r *networkingv1alpha3.TLSRoute) *FieldError {
			return checkTLSRoute(field, r, v.Hosts)
		}),
		each("tcp", v.Tcp, checkTCPRoute),
	)
}

var virtualServiceFields = slices.Concat(
	[]apiField{
		{Path: "hosts", Support: Works, Meaning: fmt.Sprintf("at most %d; a host without a service has routes at port 80, and at the ports of the other hosts' services", maxRouteHosts)},
		{Path: "gateways", Support: Works, Meaning: "`mesh`, and Gateways as `<namespace>/<name>`"},
		{Path: "exportTo", Support: Works},
	},
	httpRouteFields,
	[]apiField{
		{Path: "tls", Support: Works, Meaning: "for services with protocol TLS or HTTPS, and servers of Gateways with mode PASSTHROUGH"},
		{Path: "tcp", Support: Partly, Meaning: "for services without HTTP and TLS, and for servers of Gateways that have protocol TCP or terminate protocol TLS"},
		{Path: "tcp.match", Support: Partly, Meaning: "`destinationSubnets`, `port`, `sourceLabels`, `sourceNamespace` and `gateways`"},
		{Path: "tcp.match.sourceSubnet", Support: NoEffect, Meaning: "as with Istio; use `sourceLabels`"},
	},
)
