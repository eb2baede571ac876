package routes

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// GatewaysFault checks the Gateways of a VirtualService or of a match.
func GatewaysFault(field string, names []string) *fields.Error {
	if len(names) > maxRouteParts {
		return fields.Faultf(field, "has %d entries, at most %d are accepted", len(names), maxRouteParts)
	}
	return fields.EachText(field, names, func(field, name string) *fields.Error {
		namespace, rest, slash := strings.Cut(name, "/")
		if !slash {
			namespace, rest = ".", name
		}
		if namespace != "." && !mesh.IsDNSLabel(namespace) || !mesh.IsDNSName(rest) {
			return fields.Faultf(field, "%q is neither mesh nor the name of a Gateway", name)
		}
		return nil
	})
}

// sourceFault checks the conditions of a match on clients.
func sourceFault(field string, labels map[string]string, namespace string, gateways []string, port uint32) *fields.Error {
	var faults *fields.Error
	if len(labels) > 0 {
		faults = sourceLabelsFault(field+".sourceLabels", labels)
	}
	if namespace != "" && !mesh.IsDNSLabel(namespace) {
		faults = faults.And(fields.Faultf(field+".sourceNamespace", "%q is not a namespace", namespace))
	}
	if port > 65535 {
		faults = faults.And(fields.Faultf(field+".port", "%d is not a port: want 1 to 65535", port))
	}
	return faults.And(GatewaysFault(field+".gateways", gateways))
}

func sourceLabelsFault(field string, labels map[string]string) *fields.Error {
	faults := fields.LabelsFault(field, labels)
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if value := labels[key]; strings.ContainsAny(key+value, "=,\n") { // they separate labels in comparable conditions
			faults = faults.And(fields.Faultf(field+"["+key+"]", "%q is not the value of a label", value))
		}
	}
	return faults
}

// TLSRouteFault checks a TLS route of a VirtualService with these hosts.
func TLSRouteFault(field string, r *networkingv1alpha3.TLSRoute, hosts []string) *fields.Error {
	routes := destinationsFault(field+".route", r.Route)
	if len(r.Match) == 0 {
		return fields.Faultf(field+".match", "is empty").And(routes)
	}
	return fields.Each(field+".match", r.Match, func(field string, m *networkingv1alpha3.TLSMatchAttributes) *fields.Error {
		return fields.AllFaults(
			sniHostsFault(field+".sniHosts", m.SniHosts, hosts),
			subnetsFault(field+".destinationSubnets", m.DestinationSubnets),
			sourceFault(field, m.SourceLabels, m.SourceNamespace, m.Gateways, m.Port),
		)
	}).And(routes)
}

// sniHostsFault checks the server names of a match, which must be in the hosts of the object.
func sniHostsFault(field string, names, hosts []string) *fields.Error {
	switch {
	case len(names) == 0:
		return fields.Faultf(field, "is empty")
	case len(names) > MaxHosts:
		return fields.Faultf(field, "has %d entries, at most %d are accepted", len(names), MaxHosts)
	}
	return fields.EachText(field, names, func(field, sni string) *fields.Error {
		sni = mesh.CanonicalHost(sni)
		// Proxies name the services of other proxies outbound_.PORT_.SUBSET_.HOST. An address is no
		// server name, but some clients send one.
		if _, err := fields.ParseAddr(sni); err != nil {
			if fault := fields.HostFault(field, strings.ReplaceAll(sni, "_", "x")); fault != nil {
				return fields.Faultf(field, "%q is not a server name, whose wildcard stands for whole labels", sni)
			}
		}
		if !slices.ContainsFunc(hosts, func(host string) bool { return isSubset(sni, mesh.CanonicalHost(host)) }) {
			return fields.Faultf(field, "%q is in none of the hosts", sni)
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

// TCPRouteFault checks a TCP route of a VirtualService.
func TCPRouteFault(field string, r *networkingv1alpha3.TCPRoute) *fields.Error {
	return fields.Each(field+".match", r.Match, func(field string, m *networkingv1alpha3.L4MatchAttributes) *fields.Error {
		return fields.AllFaults(
			subnetsFault(field+".destinationSubnets", m.DestinationSubnets),
			sourceFault(field, m.SourceLabels, m.SourceNamespace, m.Gateways, m.Port),
		)
	}).And(destinationsFault(field+".route", r.Route))
}

func subnetsFault(field string, subnets []string) *fields.Error {
	if len(subnets) > maxSubnets {
		return fields.Faultf(field, "has %d entries, at most %d are accepted", len(subnets), maxSubnets)
	}
	return fields.EachText(field, subnets, func(field, s string) *fields.Error {
		_, notIP := fields.ParseAddr(s)
		if p, err := netip.ParsePrefix(s); notIP != nil && (err != nil || p.Addr().Zone() != "") {
			return fields.Faultf(field, "%q is neither an IP address nor an address range", s)
		}
		return nil
	})
}

func destinationsFault(field string, routes []*networkingv1alpha3.RouteDestination) *fields.Error {
	if len(routes) == 0 {
		return fields.Faultf(field, "is empty")
	}
	weights := make([]int32, 0, len(routes))
	faults := fields.Each(field, routes, func(field string, d *networkingv1alpha3.RouteDestination) *fields.Error {
		weights = append(weights, d.Weight)
		return destinationFault(field+".destination", d.Destination)
	})
	return faults.And(weightsFault(field, weights))
}

func weightsFault(field string, weights []int32) *fields.Error {
	if len(weights) > maxRouteParts {
		return fields.Faultf(field, "has %d entries, at most %d are accepted", len(weights), maxRouteParts)
	}
	var faults *fields.Error
	var total int64
	for i, w := range weights {
		if w < 0 {
			faults = faults.And(fields.Faultf(fields.At(field, i)+".weight", "%d is negative", w))
		}
		total += int64(w)
	}
	switch {
	case faults != nil:
		return faults
	case len(weights) > 1 && total == 0:
		return fields.Faultf(field, "has several destinations, and none has a weight")
	case total > maxTotalWeight:
		return fields.Faultf(field, "has weights with a sum of more than %d", maxTotalWeight)
	}
	return nil
}

func destinationFault(field string, d *networkingv1alpha3.Destination) *fields.Error {
	faults := destinationHostFault(field+".host", d.GetHost())
	if d.GetSubset() != "" && !mesh.IsDNSName(strings.ToLower(d.Subset)) {
		faults = faults.And(fields.Faultf(field+".subset", "%q is not a DNS name", d.Subset))
	}
	if d.GetPort() != nil && !fields.IsPort(d.Port.Number) {
		faults = faults.And(fields.Faultf(field+".port.number", "%d is not a port: want 1 to 65535", d.Port.Number))
	}
	return faults
}

func destinationHostFault(field, host string) *fields.Error {
	switch host {
	case "":
		return fields.Faultf(field, "is missing")
	case "*":
		return fields.Faultf(field, `"*" is not a host`)
	}
	if _, err := fields.ParseAddr(host); err == nil {
		return nil
	}
	return fields.HostFault(field, host)
}
