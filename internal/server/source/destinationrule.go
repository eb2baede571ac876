package source

import (
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

var destinationRuleKind = istioKind(kind{
	group: groupNetworking, name: "DestinationRule", plural: "destinationrules", versions: istioVersions,
	support: NoEffect, meaning: "there are no subsets; load balancing, connection limits, outlier detection and TLS keep their defaults",
}, func(c *conversion, spec *networkingv1alpha3.DestinationRule) *FieldError {
	c.object = &snapshot.DestinationRule{Meta: c.meta, Kind: snapshot.KindDestinationRule, Spec: spec}
	return checkDestinationRule(spec)
})

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
