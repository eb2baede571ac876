package source

import (
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

var virtualServiceKind = istioKind(kind{
	group: groupNetworking, name: "VirtualService", plural: "virtualservices", versions: istioVersions,
	support: NoEffect, meaning: "requests go to all endpoints of their service, without its routes, timeouts, retries, faults and mirrors",
}, func(c *conversion, spec *networkingv1alpha3.VirtualService) *FieldError {
	c.object = &snapshot.VirtualService{Meta: c.meta, Kind: snapshot.KindVirtualService, Spec: spec}
	return checkVirtualService(spec)
})

func checkVirtualService(v *networkingv1alpha3.VirtualService) *FieldError {
	if len(v.Hosts) == 0 && len(v.Gateways) > 0 {
		return faultf("hosts", "is empty") // without gateways it may be the target of a delegate
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
