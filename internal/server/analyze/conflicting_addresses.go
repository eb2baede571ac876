package analyze

import (
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// conflictingAddresses finds the ports of ServiceEntries whose connections go to an older
// ServiceEntry, because it has the same port at the same addresses. For Services of
// Kubernetes, see SharedAddress.
func (m *checker) conflictingAddresses() {
	for _, all := range m.Snapshot.Ports.All() {
		first := map[string][]*snapshot.MeshService{} // by place
		for _, svc := range until(m, all.Services) {
			if !svc.Entry {
				continue
			}
			e, i := m.entryPort(svc, all.Number)
			if e != nil {
				m.addressesOfPods(svc, e, i)
			}
			for _, place := range placesOf(svc, svc.Port(all.Number)) {
				winner := slices.IndexFunc(first[place], func(w *snapshot.MeshService) bool { return seenTogether(w, svc) })
				if winner < 0 {
					first[place] = append(first[place], svc)
					continue
				}
				w := first[place][winner]
				if other, _ := m.entryPort(w, all.Number); e == nil || other == e && !resolvesHosts(e) {
					continue
				}
				if place == anyAddress && svc.Port(all.Number).Protocol == mesh.Auto {
					continue // HTTP, which most such ports have, goes by host
				}
				m.find(codes.ConflictingServiceEntryAddresses, e, at("spec.ports", i), "port %d at %s: proxies pass connections on to %s, not to %s", all.Number, place, w.Host, svc.Host)
				break
			}
		}
		m.hiddenHTTP(all, first)
	}
	m.dropAddresses()
}

// addressesOfPods finds an address that a port of a ServiceEntry does not have, because a headless
// Service of another namespace has the pod and the port.
func (m *checker) addressesOfPods(svc *snapshot.MeshService, e *snapshot.ServiceEntry, port int) {
	number, part := e.Ports[port].Number, &svc.Clusters[0]
	for _, ip := range e.VIPs {
		if slices.Contains(part.VIPs, ip) && !slices.Contains(svc.AddressesOf(part, number), ip) {
			m.find(codes.ConflictingServiceEntryAddresses, e, at("spec.ports", port), "port %d at %s: proxies pass connections on to the pod with this address, not to %s, because a headless Service of another namespace has the pod and the port", number, ip, svc.Host)
			return
		}
	}
}

// resolvesHosts reports whether each host of a ServiceEntry has endpoints of its own.
func resolvesHosts(e *snapshot.ServiceEntry) bool { return e.Resolution.DNS() && len(e.Endpoints) == 0 }

// hiddenHTTP finds the HTTP ports of ServiceEntries whose connections go to ports without HTTP, which
// take all connections to an address.
func (m *checker) hiddenHTTP(all *snapshot.PortServices, first map[string][]*snapshot.MeshService) {
	for _, svc := range until(m, all.Services) {
		if !svc.Entry || !svc.Port(all.Number).Protocol.IsHTTP() {
			continue
		}
		for _, ip := range svc.AddressesOf(&svc.Clusters[0], all.Number) {
			winner := slices.IndexFunc(first[ip.String()], func(w *snapshot.MeshService) bool { return seenTogether(w, svc) })
			if e, i := m.entryPort(svc, all.Number); e != nil && winner >= 0 {
				m.find(codes.ConflictingServiceEntryAddresses, e, at("spec.ports", i), "port %d at %s: proxies pass connections on to %s, whose port has not HTTP, not to %s",
					all.Number, ip, first[ip.String()][winner].Host, svc.Host)
				break
			}
		}
	}
}

// dropAddresses removes the findings about missing addresses of ServiceEntries that get no
// connections, too: one finding suffices.
func (m *checker) dropAddresses() {
	conflict := map[snapshot.Key]bool{}
	for i := range m.found {
		if m.found[i].Code == codes.ConflictingServiceEntryAddresses {
			conflict[m.found[i].Object] = true
		}
	}
	m.found = slices.DeleteFunc(m.found, func(f Finding) bool { return f.Code == codes.ServiceEntryAddressesRequired && conflict[f.Object] })
}

// anyAddress is the place of services without addresses.
const anyAddress = "any address"

// placesOf returns the addresses at which a port of a ServiceEntry's host takes
// connections without regard to their host or server name.
func placesOf(svc *snapshot.MeshService, port *snapshot.ServicePort) []string {
	if port.Protocol.IsHTTP() {
		return nil
	}
	var out []string
	for _, ip := range svc.AddressesOf(&svc.Clusters[0], port.Number) {
		out = append(out, ip.String())
	}
	if port.Protocol == mesh.TLS || port.Protocol == mesh.HTTPS {
		return out
	}
	for _, r := range svc.RangesOf(port.Number) {
		out = append(out, r.String())
	}
	if svc.HasAnyAddress(port.Number) && len(svc.Allocated) == 0 {
		out = []string{anyAddress}
	}
	return out
}

// entryPort returns the ServiceEntry of a service, with the index of a port, or nil.
func (m *checker) entryPort(svc *snapshot.MeshService, number uint32) (entry *snapshot.ServiceEntry, port int) {
	for _, e := range m.entriesOf[svc.Namespace+"/"+svc.Host] {
		if e.Cluster != svc.Clusters[0].Cluster {
			continue
		}
		if i := slices.IndexFunc(e.Ports, func(p snapshot.ServicePort) bool { return p.Number == number && p.Protocol != mesh.UDP }); i >= 0 {
			return e, i
		}
	}
	return nil, 0
}

// seenTogether reports whether some namespace sees both services.
func seenTogether(a, b *snapshot.MeshService) bool {
	namespaces := slices.Concat([]string{a.Namespace, b.Namespace}, a.ExportTo, b.ExportTo)
	return slices.ContainsFunc(namespaces, func(ns string) bool {
		return mesh.IsDNSLabel(ns) && a.VisibleTo(ns) && b.VisibleTo(ns)
	})
}
