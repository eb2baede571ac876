package analyze

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// nearestHost returns the host of a service that was probably meant by a host that no service has: one with a
// similar name in the same namespace, the one of NAME.NAMESPACE or NAME.NAMESPACE.svc, which applications may
// call, or else the only one with this name in another namespace.
func (m *checker) nearestHost(host string) string {
	if m.hostsBelow == nil {
		m.hostsBelow, m.domainsOf = map[string][]string{}, map[string][]string{}
		for _, svc := range m.Snapshot.Services.All() {
			name, domain, _ := strings.Cut(svc.Host, ".")
			m.domainsOf[name] = append(m.domainsOf[name], domain)
			m.hostsBelow[domain] = append(m.hostsBelow[domain], name)
		}
	}
	name, domain, _ := strings.Cut(host, ".")
	if near := nearest(name, m.hostsBelow[domain]); near != "" && near != "*" {
		return near + "." + domain
	}
	for _, other := range m.domainsOf[name] {
		if namespace := strings.TrimSuffix(domain, ".svc"); strings.HasPrefix(other, namespace+".svc.") {
			return name + "." + other
		}
	}
	others := slices.DeleteFunc(slices.Clone(m.domainsOf[name]), func(other string) bool { return !isServiceDomain(other) })
	slices.Sort(others)
	if others = slices.Compact(others); isServiceDomain(domain) && len(others) == 1 {
		return name + "." + others[0]
	}
	return ""
}

// isServiceDomain reports whether the hosts below a domain are Services of Kubernetes: NAMESPACE.svc.….
func isServiceDomain(domain string) bool {
	_, rest, _ := strings.Cut(domain, ".")
	return strings.HasPrefix(rest, "svc.")
}

// nearestGateway returns the namespace and name of the Gateway that was probably meant by those of one that
// does not exist.
func (m *checker) nearestGateway(wrong string) string {
	_, name, _ := strings.Cut(wrong, "/")
	var all, same []string
	for _, gw := range list[*snapshot.Gateway](m, snapshot.KindGateway) {
		all = append(all, nameOf(gw))
		if gw.Name == name {
			same = append(same, nameOf(gw))
		}
	}
	if len(same) == 1 {
		return same[0]
	}
	return nearest(wrong, all)
}

// didYouMean returns the end of a message with the name that was probably meant, or "".
func didYouMean(near string) string {
	if near == "" {
		return ""
	}
	return "; did you mean " + near + "?"
}

// correctTo returns how to set a field to the name that was probably meant, or "".
func (m *checker) correctTo(o snapshot.Object, field, near string) string {
	if near == "" {
		return ""
	}
	return m.set(o, field, near)
}

// misnamed returns the DestinationRule whose host no service has, that probably means this host, and that
// defines a subset, or nil. Requests to the subset fail because of it.
func (m *checker) misnamed(host, subset string) *snapshot.DestinationRule {
	if m.unserved == nil {
		m.unserved = map[string][]*snapshot.DestinationRule{}
		for _, d := range m.rules {
			if ruled := snapshot.RuledHost(d); ruled != "*" && !m.served(ruled) {
				if near := m.nearestHost(ruled); near != "" {
					m.unserved[near] = append(m.unserved[near], d)
				}
			}
		}
	}
	for _, d := range m.unserved[host] {
		for _, s := range d.Spec.GetSubsets() {
			if s.GetName() == subset {
				return d
			}
		}
	}
	return nil
}
