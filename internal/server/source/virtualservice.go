package source

import (
	"fmt"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/server/source/routes"
)

var virtualServiceKind = istioKind(kind{
	group: groupNetworking, name: "VirtualService", plural: "virtualservices", versions: istioVersions,
	support: fields.Partly, meaning: "see [its fields](#virtualservice)", fields: virtualServiceFields,
}, (*conversion).virtualService)

func (c *conversion) virtualService(spec *networkingv1alpha3.VirtualService) *fields.Error {
	if fault := checkVirtualService(spec); fault != nil {
		return fault
	}
	out := &snapshot.VirtualService{Meta: c.meta, ExportTo: spec.ExportTo, HTTP: spec.Http, TLS: spec.Tls, TCP: spec.Tcp}
	hosts := make(map[string]bool, len(spec.Hosts))
	for _, host := range spec.Hosts {
		if full := c.fullHost(host); !hosts[full] {
			out.Hosts, hosts[full] = append(out.Hosts, full), true
		}
	}
	for i, r := range spec.Http {
		hosts := routes.HostRewrites(r)
		for j := 1; j < len(hosts); j++ {
			c.warn(fields.WithoutEffect(fields.At("spec.http", i)+hosts[j], strings.TrimPrefix(hosts[0], ".")+" replaces it"))
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
	if _, err := fields.ParseAddr(host); err == nil || host == "*" || strings.Contains(host, ".") {
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

func checkVirtualService(v *networkingv1alpha3.VirtualService) *fields.Error {
	isDelegate := len(v.Hosts) == 0
	switch {
	case isDelegate && len(v.Gateways) > 0:
		return fields.Faultf("hosts", "is empty") // without gateways it may be the target of a delegate
	case isDelegate && len(v.Tls)+len(v.Tcp) > 0:
		return fields.Faultf("hosts", "is empty: only HTTP routes can be delegated to")
	case len(v.Hosts) > routes.MaxHosts:
		return fields.Faultf("hosts", "has %d entries, at most %d are accepted", len(v.Hosts), routes.MaxHosts)
	case len(v.Http)+len(v.Tls)+len(v.Tcp) == 0:
		return fields.Faultf("", "has no routes: want http, tls or tcp")
	}
	inMesh := len(v.Gateways) == 0 || slices.Contains(v.Gateways, snapshot.MeshGateway)
	faults := fields.AllFaults(
		fields.EachText("hosts", v.Hosts, func(field, host string) *fields.Error {
			if _, err := fields.ParseAddr(host); err == nil {
				return nil
			}
			if host == "*" && inMesh {
				return fields.Faultf(field, `"*" would take the requests to every host of all workloads: name gateways, or hosts`)
			}
			return fields.PatternFault(field, host)
		}),
		routes.GatewaysFault("gateways", v.Gateways),
		fields.EachText("exportTo", v.ExportTo, fields.RuleExportFault),
		routes.HTTPRoutesFault(v.Http, len(v.Hosts), isDelegate),
	)
	if len(v.Tls)+len(v.Tcp) > routes.MaxRoutes {
		return faults.And(fields.Faultf("", "has %d routes, at most %d are accepted", len(v.Tls)+len(v.Tcp), routes.MaxRoutes))
	}
	return fields.AllFaults(
		faults,
		fields.Each("tls", v.Tls, func(field string, r *networkingv1alpha3.TLSRoute) *fields.Error {
			return routes.TLSRouteFault(field, r, v.Hosts)
		}),
		fields.Each("tcp", v.Tcp, routes.TCPRouteFault),
	)
}

var virtualServiceFields = slices.Concat(
	[]fields.Field{
		{Path: "hosts", Support: fields.Works, Meaning: fmt.Sprintf("at most %d; a host without a service has routes at port 80, and at the ports of the other hosts' services", routes.MaxHosts)},
		{Path: "gateways", Support: fields.Works, Meaning: "`mesh`, and Gateways as `<namespace>/<name>`"},
		{Path: "exportTo", Support: fields.Works},
	},
	routes.HTTPRouteFields,
	[]fields.Field{
		{Path: "tls", Support: fields.Works, Meaning: "for services with protocol TLS or HTTPS, and servers of Gateways with mode PASSTHROUGH"},
		{Path: "tcp", Support: fields.Partly, Meaning: "for services without HTTP and TLS, and for servers of Gateways that have protocol TCP or terminate protocol TLS"},
		{Path: "tcp.match", Support: fields.Partly, Meaning: "`destinationSubnets`, `port`, `sourceLabels`, `sourceNamespace` and `gateways`"},
		{Path: "tcp.match.sourceSubnet", Support: fields.NoEffect, Meaning: "as with Istio; use `sourceLabels`"},
	},
)
