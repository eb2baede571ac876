package source

import (
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

var serviceEntryKind = istioKind(kind{
	group: groupNetworking, name: "ServiceEntry", plural: "serviceentries", versions: istioVersions,
	support: NoEffect, meaning: "its hosts are not services of the mesh: requests to them are treated as requests to unknown hosts",
}, func(c *conversion, spec *networkingv1alpha3.ServiceEntry) *FieldError {
	c.object = &snapshot.ServiceEntry{Meta: c.meta, Kind: snapshot.KindServiceEntry, Spec: spec}
	return checkServiceEntry(spec)
})

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
