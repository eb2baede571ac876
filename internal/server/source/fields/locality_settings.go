package fields

import (
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// maxFailoverLabels bounds the priorities of endpoints.
const maxFailoverLabels = 16

// LocalitiesFault checks a localityLbSetting, which may be nil.
func LocalitiesFault(field string, s *networkingv1alpha3.LocalityLoadBalancerSetting) *Error {
	if len(s.GetDistribute()) > 0 && len(s.GetFailover())+len(s.GetFailoverPriority()) > 0 {
		return Faultf(field, "has distribute and failover: want one of them")
	}
	return AllFaults(
		distributeFault(field+".distribute", s.GetDistribute()),
		failoverFault(field+".failover", s.GetFailover()),
		failoverPriorityFault(field+".failoverPriority", s.GetFailoverPriority()),
	)
}

func failoverPriorityFault(field string, labels []string) *Error {
	if n := len(labels); n > maxFailoverLabels {
		return Faultf(field, "has %d labels: at most %d", n, maxFailoverLabels)
	}
	return EachText(field, labels, func(field, label string) *Error {
		name, _, _ := strings.Cut(label, "=")
		if name == "" || strings.ContainsAny(label, ",\n") || strings.Count(label, "=") > 1 {
			return Faultf(field, "%q is neither a label nor label=value", label)
		}
		return nil
	})
}

func failoverFault(field string, list []*networkingv1alpha3.LocalityLoadBalancerSetting_Failover) *Error {
	from := map[string]bool{}
	return Each(field, list, func(field string, f *networkingv1alpha3.LocalityLoadBalancerSetting_Failover) *Error {
		switch {
		case f.GetFrom() == "" || f.GetTo() == "":
			return Faultf(field, "needs from and to")
		case f.GetFrom() == f.GetTo():
			return Faultf(field, "from and to are both %q", f.GetFrom())
		case strings.Contains(f.GetFrom()+f.GetTo(), "*"):
			return Faultf(field, "from and to are names of regions, without *")
		case from[f.GetFrom()]:
			return Faultf(field+".from", "%q is given twice", f.GetFrom())
		}
		from[f.GetFrom()] = true
		return nil
	})
}

func distributeFault(field string, list []*networkingv1alpha3.LocalityLoadBalancerSetting_Distribute) *Error {
	var sources []string
	return Each(field, list, func(field string, d *networkingv1alpha3.LocalityLoadBalancerSetting_Distribute) *Error {
		if d.GetFrom() == "" {
			return Faultf(field+".from", "is missing")
		}
		sources = append(sources, d.GetFrom())
		faults := patternsFault(field+".from", sources)
		if faults != nil {
			sources = sources[:len(sources)-1]
		}
		to := slices.Sorted(maps.Keys(d.GetTo()))
		if fault := patternsFault(field+".to", to); fault != nil {
			return faults.And(fault)
		}
		sum := uint64(0)
		for _, locality := range to {
			weight := d.GetTo()[locality]
			if sum += uint64(weight); weight == 0 {
				faults = faults.And(Faultf(field+".to["+locality+"]", "is 0: leave the locality out"))
			}
		}
		if sum != 100 {
			faults = faults.And(Faultf(field+".to", "the sum of the percentages is %d: want 100", sum))
		}
		return faults
	})
}

// patternsFault checks patterns of localities, which must not overlap.
func patternsFault(field string, patterns []string) *Error {
	for i, p := range patterns {
		parts := strings.Split(p, "/")
		for j, part := range parts {
			if part == "" || part == "*" && j < len(parts)-1 || len(parts) > 3 || part != "*" && strings.Contains(part, "*") {
				return Faultf(field, "%q is not of the form region/zone/subzone, which may end in *", p)
			}
		}
		for _, other := range patterns[:i] {
			if overlaps(parts, strings.Split(other, "/")) {
				return Faultf(field, "%q overlaps with %q", p, other)
			}
		}
	}
	return nil
}

// overlaps reports whether a locality may match both patterns.
func overlaps(a, b []string) bool {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] && a[i] != "*" && b[i] != "*" {
			return false
		}
	}
	return true
}

// NoZoneAware is the meaning of the fields for zone-aware routing, which have no effect.
const NoZoneAware = "use `localityLbSetting`"
