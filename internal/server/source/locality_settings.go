package source

import (
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// maxFailoverLabels bounds the priorities of endpoints.
const maxFailoverLabels = 16

// checkLocalities checks a localityLbSetting, which may be nil.
func checkLocalities(field string, s *networkingv1alpha3.LocalityLoadBalancerSetting) *FieldError {
	if len(s.GetDistribute()) > 0 && len(s.GetFailover())+len(s.GetFailoverPriority()) > 0 {
		return faultf(field, "has distribute and failover: want one of them")
	}
	if n := len(s.GetFailoverPriority()); n > maxFailoverLabels {
		return faultf(field+".failoverPriority", "has %d labels: at most %d", n, maxFailoverLabels)
	}
	for i, label := range s.GetFailoverPriority() {
		name, _, _ := strings.Cut(label, "=")
		if name == "" || strings.ContainsAny(label, ",\n") || strings.Count(label, "=") > 1 {
			return faultf(at(field+".failoverPriority", i), "%q is neither a label nor label=value", label)
		}
	}
	from := map[string]bool{}
	fault := each(field+".failover", s.GetFailover(), func(field string, f *networkingv1alpha3.LocalityLoadBalancerSetting_Failover) *FieldError {
		switch {
		case f.GetFrom() == "" || f.GetTo() == "":
			return faultf(field, "needs from and to")
		case f.GetFrom() == f.GetTo():
			return faultf(field, "from and to are both %q", f.GetFrom())
		case strings.Contains(f.GetFrom()+f.GetTo(), "*"):
			return faultf(field, "from and to are names of regions, without *")
		case from[f.GetFrom()]:
			return faultf(field+".from", "%q is given twice", f.GetFrom())
		}
		from[f.GetFrom()] = true
		return nil
	})
	if fault != nil {
		return fault
	}
	var sources []string
	return each(field+".distribute", s.GetDistribute(), func(field string, d *networkingv1alpha3.LocalityLoadBalancerSetting_Distribute) *FieldError {
		if sources = append(sources, d.GetFrom()); d.GetFrom() == "" {
			return faultf(field+".from", "is missing")
		}
		if fault := patternsFault(field+".from", sources); fault != nil {
			return fault
		}
		to := slices.Sorted(maps.Keys(d.GetTo()))
		if fault := patternsFault(field+".to", to); fault != nil {
			return fault
		}
		sum := uint64(0)
		for _, locality := range to {
			weight := d.GetTo()[locality]
			if sum += uint64(weight); weight == 0 {
				return faultf(field+".to["+locality+"]", "is 0: leave the locality out")
			}
		}
		if sum != 100 {
			return faultf(field+".to", "the sum of the percentages is %d: want 100", sum)
		}
		return nil
	})
}

// patternsFault checks patterns of localities, which must not overlap.
func patternsFault(field string, patterns []string) *FieldError {
	for i, p := range patterns {
		parts := strings.Split(p, "/")
		for j, part := range parts {
			if part == "" || part == "*" && j < len(parts)-1 || len(parts) > 3 || part != "*" && strings.Contains(part, "*") {
				return faultf(field, "%q is not of the form region/zone/subzone, which may end in *", p)
			}
		}
		for _, other := range patterns[:i] {
			if overlaps(parts, strings.Split(other, "/")) {
				return faultf(field, "%q overlaps with %q", p, other)
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
