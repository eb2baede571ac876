package snapshot

import (
	"iter"
	"net/netip"
)

// Ranges is a set of address ranges. Its methods take as long for many ranges as for few.
type Ranges struct {
	lengths map[int]struct{}
	ranges  map[netip.Prefix]struct{}
}

// Add adds ranges, which must be masked.
func (s *Ranges) Add(ranges ...netip.Prefix) {
	for _, r := range ranges {
		if s.ranges == nil {
			s.lengths, s.ranges = make(map[int]struct{}), make(map[netip.Prefix]struct{})
		}
		s.lengths[r.Bits()], s.ranges[r] = struct{}{}, struct{}{}
	}
}

// Empty reports whether there are no ranges.
func (s *Ranges) Empty() bool { return len(s.ranges) == 0 }

// contains reports whether an address is in a range.
func (s *Ranges) contains(ip netip.Addr) bool {
	for bits := range s.lengths {
		r, err := ip.Prefix(bits)
		if _, in := s.ranges[r]; in && err == nil {
			return true
		}
	}
	return false
}

// Within returns the addresses that are in a range.
func (s *Ranges) Within(ips []netip.Addr) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, ip := range ips {
			if s.contains(ip) && !yield(ip) {
				return
			}
		}
	}
}
