package facts

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/derive"
)

// The ranges of allocated addresses, as in Istio: 240.240.0.0/16 and 2001:2::/48.
const allocatableAddresses = 1<<16 - 2 // without the first and the last one

func allocatable(n uint32) []netip.Addr {
	high, low := byte((n+1)>>8), byte(n+1)
	return []netip.Addr{
		netip.AddrFrom4([4]byte{240, 240, high, low}),
		netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 3: 0x02, 14: high, 15: low}),
	}
}

// allocate returns the addresses of the hosts that need one. Hosts keep the addresses in
// the status of their ServiceEntry. The others get an address by the hash of their name,
// or the next free one; the host of the oldest ServiceEntry chooses first, so that later
// ones do not change its address.
func (t *Tables) allocate(r *derive.Reads) map[string][]netip.Addr {
	out := make(map[string][]netip.Addr)
	taken := make(map[netip.Addr]struct{})
	entries := values(t.allocating.Lookup(r, struct{}{}))
	slices.SortFunc(entries, compareAge)
	for _, e := range entries {
		for _, host := range e.Hosts {
			free := slices.DeleteFunc(slices.Clone(e.Allocated[host]), func(ip netip.Addr) bool {
				_, used := taken[ip]
				return used
			})
			if len(out[host]) > 0 || len(free) == 0 {
				continue
			}
			out[host] = free
			for _, ip := range free {
				taken[ip] = struct{}{}
			}
		}
	}
	for _, e := range entries {
		for _, host := range e.Hosts {
			if len(out[host]) > 0 || strings.HasPrefix(host, "*") {
				continue
			}
			first := hashOf(host)
			for probe := range uint32(allocatableAddresses) {
				ips := allocatable((first + probe) % allocatableAddresses)
				if slices.ContainsFunc(ips, func(ip netip.Addr) bool { _, used := taken[ip]; return used }) {
					continue
				}
				for _, ip := range ips {
					taken[ip] = struct{}{}
				}
				out[host] = ips
				break
			}
		}
	}
	return out
}

// UnwrittenAddresses holds the allocated addresses that the status of a ServiceEntry lacks, by
// host.
type UnwrittenAddresses struct {
	Namespace, Name string
	Hosts           map[string][]netip.Addr
}

func (u UnwrittenAddresses) equal(other UnwrittenAddresses) bool {
	return u.Namespace == other.Namespace && u.Name == other.Name && equalAllocation(u.Hosts, other.Hosts)
}

// findUnwritten returns the addresses of hosts that no ServiceEntry has in its status, each
// for the oldest one.
func (t *Tables) findUnwritten(r *derive.Reads) []UnwrittenAddresses {
	entries := values(t.allocating.Lookup(r, struct{}{}))
	slices.SortFunc(entries, compareAge)
	written := Set[string]{}
	for _, e := range entries {
		for host := range e.Allocated {
			written.Add(host)
		}
	}
	var out []UnwrittenAddresses
	for _, e := range entries {
		u := UnwrittenAddresses{Namespace: e.Namespace, Name: e.Name}
		for _, host := range e.Hosts {
			ips := t.allocation.Get(r)[host]
			if _, done := written[host]; done || len(ips) == 0 {
				continue
			}
			written.Add(host)
			if u.Hosts == nil {
				u.Hosts = make(map[string][]netip.Addr)
			}
			u.Hosts[host] = ips
		}
		if u.Hosts != nil {
			out = append(out, u)
		}
	}
	return out
}

// hashOf returns the FNV-1a hash of a host as the number of an allocatable address.
func hashOf(host string) uint32 {
	hash := uint32(2166136261)
	for i := range len(host) {
		hash = (hash ^ uint32(host[i])) * 16777619
	}
	return hash % allocatableAddresses
}

func equalAllocation(a, b map[string][]netip.Addr) bool {
	return maps.EqualFunc(a, b, slices.Equal[[]netip.Addr])
}
