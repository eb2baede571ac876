package proxy

import "net/netip"

// Families is a set of IP versions.
type Families uint8

// The IP versions.
const (
	V4 Families = 1 << iota
	V6
)

// Families returns the IP versions of the proxy.
func (n *Node) Families() Families {
	var f Families
	for _, ip := range n.IPs {
		f |= FamilyOf(ip)
	}
	return f
}

// Wildcards returns the wildcard addresses of the IP versions, IPv4 first. For a proxy
// without addresses it returns IPv4's.
func (f Families) Wildcards() []string {
	switch f {
	case V6:
		return []string{"::"}
	case V4 | V6:
		return []string{"0.0.0.0", "::"}
	}
	return []string{"0.0.0.0"}
}

// Loopbacks returns the loopback addresses of the IP versions, as wildcards does.
func (f Families) Loopbacks() []string {
	switch f {
	case V6:
		return []string{"::1"}
	case V4 | V6:
		return []string{"127.0.0.1", "::1"}
	}
	return []string{"127.0.0.1"}
}

// FamilyOf returns the IP version of an address.
func FamilyOf(ip netip.Addr) Families {
	if ip.Is4() || ip.Is4In6() {
		return V4
	}
	return V6
}
