package source

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
)

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
