package analyze

import (
	"fmt"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// serviceEntries checks the ServiceEntries.
func (m *checker) serviceEntries() {
	type use struct {
		entry    *snapshot.ServiceEntry
		protocol mesh.Protocol
	}
	uses := map[string][]use{} // by host and port
	for _, e := range until(m, m.entries) {
		m.addresses(e)
		for i := range e.Ports {
			p := &e.Ports[i]
			for _, host := range e.Hosts {
				key := fmt.Sprintf("%s:%d", host, p.Number)
				if j := slices.IndexFunc(uses[key], func(u use) bool {
					return u.protocol != p.Protocol && exports{u.entry.Namespace, u.entry.ExportTo}.overlap(exports{e.Namespace, e.ExportTo})
				}); j >= 0 {
					other := uses[key][j]
					m.find(codes.ConflictingServiceEntryProtocol, e, at("spec.ports", i)+".protocol", "%s of %s:%d is %s in ServiceEntry %s",
						p.Protocol, host, p.Number, other.protocol, nameOf(other.entry))
				}
				uses[key] = append(uses[key], use{e, p.Protocol})
			}
		}
	}
	m.dropSharedHosts()
	m.conflictingAddresses()
}

// dropSharedHosts removes the findings about hosts of ServiceEntries whose protocols conflict,
// too: one finding suffices.
func (m *checker) dropSharedHosts() {
	conflict := map[snapshot.Key]bool{}
	for i := range m.found {
		if m.found[i].Code == codes.ConflictingServiceEntryProtocol {
			conflict[m.found[i].Object] = true
		}
	}
	m.found = slices.DeleteFunc(m.found, func(f Finding) bool { return f.Code == codes.SharedHost && conflict[f.Object] })
}

// addresses finds TCP ports of a ServiceEntry without addresses, which take the connections
// to all addresses.
func (m *checker) addresses(e *snapshot.ServiceEntry) {
	if !e.AnyAddress || e.Allocate {
		return
	}
	for i := range e.Ports {
		switch p := &e.Ports[i]; {
		case p.Protocol.IsHTTP(), p.Protocol == mesh.TLS, p.Protocol == mesh.HTTPS, p.Protocol == mesh.UDP:
		default:
			m.find(codes.ServiceEntryAddressesRequired, e, "spec.addresses", "is empty: connections to port %d of every unknown address go to %s, as %s names no host",
				p.Number, listed(e.Hosts), p.Protocol)
			return
		}
	}
}
