package source

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// istio checks an Istio object and delivers it. The field paths of faults are
// those of the spec until here.
func (c *conversion) istio(o *Istio) *FieldError {
	var fault *FieldError
	switch spec := o.Spec.(type) {
	case *networkingv1alpha3.Gateway:
		c.object, fault = &snapshot.Gateway{Meta: c.meta, Kind: o.Kind, Spec: spec}, checkGateway(spec)
	case *networkingv1alpha3.Sidecar:
		c.object, fault = &snapshot.Sidecar{Meta: c.meta, Kind: o.Kind, Spec: spec}, checkSidecar(spec)
	case *securityv1beta1.PeerAuthentication:
		c.object, fault = &snapshot.PeerAuthentication{Meta: c.meta, Kind: o.Kind, Spec: spec}, checkPeerAuthentication(spec)
	case *networkingv1alpha3.DestinationRule:
		c.object, fault = &snapshot.DestinationRule{Meta: c.meta, Kind: o.Kind, Spec: spec}, checkDestinationRule(spec)
	case *networkingv1alpha3.VirtualService:
		c.object, fault = &snapshot.VirtualService{Meta: c.meta, Kind: o.Kind, Spec: spec}, checkVirtualService(spec)
	case *networkingv1alpha3.ServiceEntry:
		c.object, fault = &snapshot.ServiceEntry{Meta: c.meta, Kind: o.Kind, Spec: spec}, checkServiceEntry(spec)
	case *networkingv1alpha3.EnvoyFilter:
		fault = c.envoyFilter(spec)
	case *networkingv1alpha3.WorkloadEntry:
		fault = c.workloadEntry(o, spec)
	default:
		fault = faultf("", "is not a spec of %s", o.Kind)
	}
	if fault == nil && !c.Remote {
		for _, w := range istioKind(o.Kind).withoutEffect(o.Spec) {
			c.warn(w)
		}
	}
	return under("spec", fault)
}

// istioKind returns the kind of an object that is read.
func istioKind(kind snapshot.Kind) *APIKind {
	if kind == snapshot.KindPeerAuthentication {
		return findKind(groupSecurity, string(kind))
	}
	return findKind(groupNetworking, string(kind))
}

// at names an item of a list.
func at(list string, i int) string { return list + "[" + strconv.Itoa(i) + "]" }

// each checks every item of a list, none of which may be missing.
func each[T any](list string, items []*T, check func(field string, item *T) *FieldError) *FieldError {
	for i, item := range items {
		if item == nil {
			return faultf(at(list, i), "is empty")
		}
		if fault := check(at(list, i), item); fault != nil {
			return fault
		}
	}
	return nil
}

// hostFault checks a DNS name that may be "*" or start with "*.".
func hostFault(field, host string) *FieldError {
	name := strings.ToLower(strings.TrimPrefix(host, "*."))
	if host == "*" || mesh.IsDNSName(name) {
		return nil
	}
	return faultf(field, "%q is not a host name", host)
}

// scopedHostFault checks <namespace>/<host>, where the namespace may be one
// of the words.
func scopedHostFault(field, host, words string) *FieldError {
	namespace, name, _ := strings.Cut(host, "/")
	if !mesh.IsDNSLabel(namespace) && !slices.Contains(strings.Fields(words), namespace) {
		return faultf(field, "%q: %q is neither a namespace nor one of %s", host, namespace, words)
	}
	return hostFault(field, name)
}

func portFault(field string, number uint32, protocol string, refused ...mesh.Protocol) *FieldError {
	if !isPort(number) {
		return faultf(field+".number", "%d is not a port: want 1 to 65535", number)
	}
	p, known := mesh.ParseProtocol(protocol)
	if protocol != "" && !known || slices.Contains(refused, p) {
		return faultf(field+".protocol", "%q is not a protocol that this port can have", protocol)
	}
	return nil // no protocol means detection
}

func bindFault(field, bind string) *FieldError {
	if bind == "" {
		return nil
	}
	if _, err := parseAddr(bind); err != nil {
		return &FieldError{Field: field, Err: err}
	}
	return nil
}

func labelsFault(field string, labels map[string]string) *FieldError {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if key == "" || strings.Contains(key, "*") || strings.Contains(labels[key], "*") {
			return faultf(field+"["+key+"]", "wildcards and empty names are not allowed")
		}
	}
	return nil
}

func checkGateway(g *networkingv1alpha3.Gateway) *FieldError {
	if len(g.Servers) == 0 {
		return faultf("servers", "is empty: a gateway needs at least one")
	}
	if fault := labelsFault("selector", g.Selector); fault != nil {
		return fault
	}
	return each("servers", g.Servers, checkServer)
}

func checkServer(field string, s *networkingv1alpha3.Server) *FieldError {
	switch {
	case s.Port == nil:
		return faultf(field+".port", "is missing")
	case s.Port.Protocol == "":
		return faultf(field+".port.protocol", "is missing")
	}
	if fault := portFault(field+".port", s.Port.Number, s.Port.Protocol, mesh.UDP, mesh.HTTPProxy); fault != nil {
		return fault
	}
	if fault := bindFault(field+".bind", s.Bind); fault != nil {
		return fault
	}
	if len(s.Hosts) == 0 {
		return faultf(field+".hosts", "is empty: use \"*\" for every host")
	}
	for i, host := range s.Hosts {
		check := hostFault
		if strings.Contains(host, "/") {
			check = func(field, host string) *FieldError { return scopedHostFault(field, host, "* .") }
		}
		if fault := check(at(field+".hosts", i), host); fault != nil {
			return fault
		}
	}
	p, _ := mesh.ParseProtocol(s.Port.Protocol)
	isTLS := p == mesh.TLS || p == mesh.HTTPS
	switch {
	case isTLS && s.Tls == nil:
		return faultf(field+".tls", "is missing: protocol %s needs it", s.Port.Protocol)
	case !isTLS && s.Tls != nil && !s.Tls.HttpsRedirect && p.IsHTTP():
		return faultf(field+".tls", "does not go with protocol %s: use HTTPS or TLS", s.Port.Protocol)
	case !isTLS && s.Tls != nil && s.Tls.Mode == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH:
		return faultf(field+".tls.mode", "AUTO_PASSTHROUGH needs protocol TLS, not %s", s.Port.Protocol)
	}
	return nil
}

func checkSidecar(s *networkingv1alpha3.Sidecar) *FieldError {
	if s.WorkloadSelector != nil {
		if fault := labelsFault("workloadSelector.labels", s.WorkloadSelector.Labels); fault != nil {
			return fault
		}
	}
	seen := map[uint32]int{}
	for i, in := range s.Ingress {
		field := at("ingress", i)
		if in == nil || in.Port == nil {
			return faultf(field+".port", "is missing")
		}
		if fault := checkIngress(field, in); fault != nil {
			return fault
		}
		if first, twice := seen[in.Port.Number]; twice {
			return faultf(field+".port.number", "%d is the port of %s, too", in.Port.Number, at("ingress", first))
		}
		seen[in.Port.Number] = i
	}
	return each("egress", s.Egress, checkEgress)
}

func checkIngress(field string, in *networkingv1alpha3.IstioIngressListener) *FieldError {
	if fault := portFault(field+".port", in.Port.Number, in.Port.Protocol, mesh.UDP, mesh.HTTPProxy); fault != nil {
		return fault
	}
	if fault := bindFault(field+".bind", in.Bind); fault != nil {
		return fault
	}
	if in.DefaultEndpoint == "" {
		return nil
	}
	return defaultEndpointFault(field+".defaultEndpoint", in.DefaultEndpoint)
}

// defaultEndpointFault allows only what is on the proxy's own machine: a
// Sidecar must not turn its proxies into a way to other addresses.
func defaultEndpointFault(field, endpoint string) *FieldError {
	if path, ok := strings.CutPrefix(endpoint, "unix://"); ok {
		if path == "" {
			return faultf(field, "%q has no path", endpoint)
		}
		return nil
	}
	ap, err := netip.ParseAddrPort(endpoint)
	if err == nil && ap.Port() > 0 {
		switch ap.Addr().String() {
		case "127.0.0.1", "0.0.0.0", "::1", "::":
			return nil
		}
	}
	return faultf(field, "%q is none of 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT and unix://PATH", endpoint)
}

func checkEgress(field string, e *networkingv1alpha3.IstioEgressListener) *FieldError {
	path, isUnix := strings.CutPrefix(e.Bind, "unix://")
	switch {
	case isUnix && path == "":
		return faultf(field+".bind", "%q has no path", e.Bind)
	case e.Bind != "" && e.Port == nil:
		return faultf(field+".bind", "needs a port")
	case !isUnix:
		if fault := bindFault(field+".bind", e.Bind); fault != nil {
			return fault
		}
	}
	if e.Port != nil && (!isUnix || e.Port.Number != 0) {
		if fault := portFault(field+".port", e.Port.Number, e.Port.Protocol, mesh.UDP); fault != nil {
			return fault
		}
	}
	if len(e.Hosts) == 0 {
		return faultf(field+".hosts", "is empty: use \"*/*\" for every host")
	}
	for i, host := range e.Hosts {
		if strings.Count(host, "/") != 1 {
			return faultf(at(field+".hosts", i), "%q is not of the form namespace/host", host)
		}
		if fault := scopedHostFault(at(field+".hosts", i), host, "* . ~"); fault != nil {
			return fault
		}
	}
	return nil
}

func checkPeerAuthentication(p *securityv1beta1.PeerAuthentication) *FieldError {
	if fault := labelsFault("selector.matchLabels", p.GetSelector().GetMatchLabels()); fault != nil {
		return fault
	}
	if len(p.PortLevelMtls) > 0 && len(p.GetSelector().GetMatchLabels()) == 0 {
		return faultf("portLevelMtls", "needs a selector")
	}
	for _, port := range slices.Sorted(maps.Keys(p.PortLevelMtls)) {
		field := fmt.Sprintf("portLevelMtls[%d]", port)
		switch {
		case !isPort(port):
			return faultf(field, "%d is not a port: want 1 to 65535", port)
		case p.PortLevelMtls[port] == nil:
			return faultf(field, "is empty")
		}
	}
	return nil
}

func checkDestinationRule(d *networkingv1alpha3.DestinationRule) *FieldError {
	if fault := hostFault("host", d.Host); fault != nil {
		return fault
	}
	names := map[string]bool{}
	return each("subsets", d.Subsets, func(field string, s *networkingv1alpha3.Subset) *FieldError {
		switch {
		case !mesh.IsDNSName(strings.ToLower(s.Name)): // it becomes part of a server name
			return faultf(field+".name", "%q is not a DNS name", s.Name)
		case names[s.Name]:
			return faultf(field+".name", "%q is given twice", s.Name)
		}
		names[s.Name] = true
		return nil
	})
}

func checkVirtualService(v *networkingv1alpha3.VirtualService) *FieldError {
	if len(v.Hosts) == 0 && len(v.Gateways) > 0 {
		return faultf("hosts", "is empty") // without gateways it is one that others delegate to
	}
	for i, host := range v.Hosts {
		if _, err := parseAddr(host); err == nil {
			continue
		}
		if fault := hostFault(at("hosts", i), host); fault != nil {
			return fault
		}
	}
	if len(v.Http)+len(v.Tls)+len(v.Tcp) == 0 {
		return faultf("", "has no routes: want http, tls or tcp")
	}
	if fault := each("http", v.Http, checkHTTPRoute); fault != nil {
		return fault
	}
	if fault := each("tls", v.Tls, checkTLSRoute); fault != nil {
		return fault
	}
	return each("tcp", v.Tcp, func(field string, r *networkingv1alpha3.TCPRoute) *FieldError {
		return destinationsFault(field+".route", r.Route)
	})
}

func checkTLSRoute(field string, r *networkingv1alpha3.TLSRoute) *FieldError {
	if len(r.Match) == 0 {
		return faultf(field+".match", "is empty")
	}
	if fault := each(field+".match", r.Match, func(field string, m *networkingv1alpha3.TLSMatchAttributes) *FieldError {
		if len(m.SniHosts) == 0 {
			return faultf(field+".sniHosts", "is empty")
		}
		return nil
	}); fault != nil {
		return fault
	}
	return destinationsFault(field+".route", r.Route)
}

func checkHTTPRoute(field string, r *networkingv1alpha3.HTTPRoute) *FieldError {
	if len(r.Route) == 0 && r.Redirect == nil && r.DirectResponse == nil && r.Delegate == nil {
		return faultf(field, "has none of route, redirect, directResponse and delegate")
	}
	if fault := each(field+".match", r.Match, func(string, *networkingv1alpha3.HTTPMatchRequest) *FieldError { return nil }); fault != nil {
		return fault
	}
	return each(field+".route", r.Route, func(field string, d *networkingv1alpha3.HTTPRouteDestination) *FieldError {
		return destinationFault(field, d.Destination, d.Weight)
	})
}

func destinationsFault(field string, routes []*networkingv1alpha3.RouteDestination) *FieldError {
	if len(routes) == 0 {
		return faultf(field, "is empty")
	}
	return each(field, routes, func(field string, d *networkingv1alpha3.RouteDestination) *FieldError {
		return destinationFault(field, d.Destination, d.Weight)
	})
}

func destinationFault(field string, d *networkingv1alpha3.Destination, weight int32) *FieldError {
	switch {
	case d.GetHost() == "":
		return faultf(field+".destination.host", "is missing")
	case weight < 0:
		return faultf(field+".weight", "%d is negative", weight)
	case d.Port != nil && !isPort(d.Port.Number):
		return faultf(field+".destination.port.number", "%d is not a port: want 1 to 65535", d.Port.Number)
	}
	return hostFault(field+".destination.host", d.Host)
}

func checkServiceEntry(s *networkingv1alpha3.ServiceEntry) *FieldError {
	if len(s.Hosts) == 0 {
		return faultf("hosts", "is empty")
	}
	for i, host := range s.Hosts {
		if host == "*" {
			return faultf(at("hosts", i), "\"*\" would take every host: name a domain")
		}
		if fault := hostFault(at("hosts", i), host); fault != nil {
			return fault
		}
	}
	names, numbers := map[string]bool{}, map[uint32]bool{}
	if fault := each("ports", s.Ports, func(field string, p *networkingv1alpha3.ServicePort) *FieldError {
		if fault := portFault(field, p.Number, p.Protocol); fault != nil {
			return fault
		}
		switch {
		case p.Name == "":
			return faultf(field+".name", "is missing")
		case names[p.Name]:
			return faultf(field+".name", "%q is given twice", p.Name)
		case numbers[p.Number]:
			return faultf(field+".number", "%d is given twice", p.Number)
		}
		names[p.Name], numbers[p.Number] = true, true
		return nil
	}); fault != nil {
		return fault
	}
	return resolutionFault(s)
}

func resolutionFault(s *networkingv1alpha3.ServiceEntry) *FieldError {
	switch s.Resolution {
	case networkingv1alpha3.ServiceEntry_NONE:
		if len(s.Endpoints) > 0 {
			return faultf("endpoints", "needs a resolution other than NONE")
		}
	case networkingv1alpha3.ServiceEntry_DNS_ROUND_ROBIN:
		if len(s.Endpoints) > 1 {
			return faultf("endpoints", "has more than one entry, which resolution DNS_ROUND_ROBIN does not allow")
		}
	}
	return each("endpoints", s.Endpoints, func(field string, e *networkingv1alpha3.WorkloadEntry) *FieldError {
		if s.Resolution != networkingv1alpha3.ServiceEntry_STATIC || strings.HasPrefix(e.Address, "unix://") || e.Address == "" && e.Network != "" {
			return nil
		}
		if _, err := parseAddr(e.Address); err != nil {
			return faultf(field+".address", "%q is not an IP address, which resolution STATIC needs", e.Address)
		}
		return nil
	})
}
