package source

import (
	"fmt"
	"maps"
	"net/netip"
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

// Bounds of a VirtualService. Each host gets all routes, so their product counts, too.
const (
	maxRouteHosts  = 1000
	maxRoutes      = 5000 // one for each match
	maxHostRoutes  = 100_000
	maxRouteParts  = 500 // destinations, mirrors, conditions and header operations of a route
	maxSubnets     = 1000
	maxTotalWeight = 1<<32 - 1
)

func (c *conversion) virtualService(spec *networkingv1alpha3.VirtualService) *FieldError {
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

// ruleExportFault checks a namespace to which a VirtualService or a DestinationRule is
// exported.
func ruleExportFault(field, namespace string) *FieldError {
	if namespace != "*" && namespace != "." && !mesh.IsDNSLabel(namespace) {
		return faultf(field, "%q is neither a namespace nor one of * .", namespace)
	}
	return nil
}

func gatewaysFault(field string, names []string) *FieldError {
	if len(names) > maxRouteParts {
		return faultf(field, "has %d entries, at most %d are accepted", len(names), maxRouteParts)
	}
	return eachText(field, names, func(field, name string) *FieldError {
		namespace, rest, slash := strings.Cut(name, "/")
		if !slash {
			namespace, rest = ".", name
		}
		if namespace != "." && !mesh.IsDNSLabel(namespace) || !mesh.IsDNSName(rest) {
			return faultf(field, "%q is neither mesh nor the name of a Gateway", name)
		}
		return nil
	})
}

// sourceFault checks the conditions of a match on clients.
func sourceFault(field string, labels map[string]string, namespace string, gateways []string, port uint32) *FieldError {
	var faults *FieldError
	if len(labels) > 0 {
		faults = sourceLabelsFault(field+".sourceLabels", labels)
	}
	if namespace != "" && !mesh.IsDNSLabel(namespace) {
		faults = faults.and(faultf(field+".sourceNamespace", "%q is not a namespace", namespace))
	}
	if port > 65535 {
		faults = faults.and(faultf(field+".port", "%d is not a port: want 1 to 65535", port))
	}
	return faults.and(gatewaysFault(field+".gateways", gateways))
}

func sourceLabelsFault(field string, labels map[string]string) *FieldError {
	faults := labelsFault(field, labels)
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if value := labels[key]; strings.ContainsAny(key+value, "=,\n") { // they separate labels in comparable conditions
			faults = faults.and(faultf(field+"["+key+"]", "%q is not the value of a label", value))
		}
	}
	return faults
}

func checkTLSRoute(field string, r *networkingv1alpha3.TLSRoute, hosts []string) *FieldError {
	routes := destinationsFault(field+".route", r.Route)
	if len(r.Match) == 0 {
		return faultf(field+".match", "is empty").and(routes)
	}
	return each(field+".match", r.Match, func(field string, m *networkingv1alpha3.TLSMatchAttributes) *FieldError {
		return allFaults(
			sniHostsFault(field+".sniHosts", m.SniHosts, hosts),
			subnetsFault(field+".destinationSubnets", m.DestinationSubnets),
			sourceFault(field, m.SourceLabels, m.SourceNamespace, m.Gateways, m.Port),
		)
	}).and(routes)
}

// sniHostsFault checks the server names of a match, which must be in the hosts of the object.
func sniHostsFault(field string, names, hosts []string) *FieldError {
	switch {
	case len(names) == 0:
		return faultf(field, "is empty")
	case len(names) > maxRouteHosts:
		return faultf(field, "has %d entries, at most %d are accepted", len(names), maxRouteHosts)
	}
	return eachText(field, names, func(field, sni string) *FieldError {
		sni = mesh.CanonicalHost(sni)
		// Proxies name the services of other proxies outbound_.PORT_.SUBSET_.HOST. An address is no
		// server name, but some clients send one.
		if _, err := parseAddr(sni); err != nil {
			if fault := hostFault(field, strings.ReplaceAll(sni, "_", "x")); fault != nil {
				return faultf(field, "%q is not a server name, whose wildcard stands for whole labels", sni)
			}
		}
		if !slices.ContainsFunc(hosts, func(host string) bool { return isSubset(sni, mesh.CanonicalHost(host)) }) {
			return faultf(field, "%q is in none of the hosts", sni)
		}
		return nil
	})
}

// isSubset reports whether every name of a host, which may be a wildcard, is one of
// another.
func isSubset(host, of string) bool {
	suffix, wild := strings.CutPrefix(of, "*")
	return host == of || wild && strings.HasSuffix(host, suffix)
}

func checkTCPRoute(field string, r *networkingv1alpha3.TCPRoute) *FieldError {
	return each(field+".match", r.Match, func(field string, m *networkingv1alpha3.L4MatchAttributes) *FieldError {
		return allFaults(
			subnetsFault(field+".destinationSubnets", m.DestinationSubnets),
			sourceFault(field, m.SourceLabels, m.SourceNamespace, m.Gateways, m.Port),
		)
	}).and(destinationsFault(field+".route", r.Route))
}

func subnetsFault(field string, subnets []string) *FieldError {
	if len(subnets) > maxSubnets {
		return faultf(field, "has %d entries, at most %d are accepted", len(subnets), maxSubnets)
	}
	return eachText(field, subnets, func(field, s string) *FieldError {
		_, notIP := parseAddr(s)
		if p, err := netip.ParsePrefix(s); notIP != nil && (err != nil || p.Addr().Zone() != "") {
			return faultf(field, "%q is neither an IP address nor an address range", s)
		}
		return nil
	})
}

func destinationsFault(field string, routes []*networkingv1alpha3.RouteDestination) *FieldError {
	if len(routes) == 0 {
		return faultf(field, "is empty")
	}
	weights := make([]int32, 0, len(routes))
	faults := each(field, routes, func(field string, d *networkingv1alpha3.RouteDestination) *FieldError {
		weights = append(weights, d.Weight)
		return destinationFault(field+".destination", d.Destination)
	})
	return faults.and(weightsFault(field, weights))
}

func weightsFault(field string, weights []int32) *FieldError {
	if len(weights) > maxRouteParts {
		return faultf(field, "has %d entries, at most %d are accepted", len(weights), maxRouteParts)
	}
	var faults *FieldError
	var total int64
	for i, w := range weights {
		if w < 0 {
			faults = faults.and(faultf(at(field, i)+".weight", "%d is negative", w))
		}
		total += int64(w)
	}
	switch {
	case faults != nil:
		return faults
	case len(weights) > 1 && total == 0:
		return faultf(field, "has several destinations, and none has a weight")
	case total > maxTotalWeight:
		return faultf(field, "has weights with a sum of more than %d", maxTotalWeight)
	}
	return nil
}

func destinationFault(field string, d *networkingv1alpha3.Destination) *FieldError {
	faults := destinationHostFault(field+".host", d.GetHost())
	if d.GetSubset() != "" && !mesh.IsDNSName(strings.ToLower(d.Subset)) {
		faults = faults.and(faultf(field+".subset", "%q is not a DNS name", d.Subset))
	}
	if d.GetPort() != nil && !isPort(d.Port.Number) {
		faults = faults.and(faultf(field+".port.number", "%d is not a port: want 1 to 65535", d.Port.Number))
	}
	return faults
}

func destinationHostFault(field, host string) *FieldError {
	switch host {
	case "":
		return faultf(field, "is missing")
	case "*":
		return faultf(field, `"*" is not a host`)
	}
	if _, err := parseAddr(host); err == nil {
		return nil
	}
	return hostFault(field, host)
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
