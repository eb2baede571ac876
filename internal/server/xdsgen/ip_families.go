package xdsgen

import "net/netip"

// families is a set of IP versions.
type families uint8

const (
	v4 families = 1 << iota
	v6
)

// families returns the IP versions of the proxy.
func (n *Node) families() families {
	var f families
	for _, ip := range n.IPs {
		f |= familyOf(ip)
	}
	return f
}

// wildcards returns the wildcard addresses of the IP versions, IPv4 first. For a proxy
// without addresses it returns IPv4's.
func (f families) wildcards() []string {
	switch f {
	case v6:
		return []string{"::"}
	case v4 | v6:
		return []string{"0.0.0.0", "::"}
	}
	return []string{"0.0.0.0"}
}

// loopbacks returns the loopback addresses of the IP versions, as wildcards does.
func (f families) loopbacks() []string {
	switch f {
	case v6:
		return []string{"::1"}
	case v4 | v6:
		return []string{"127.0.0.1", "::1"}
	}
	return []string{"127.0.0.1"}
}

// familyOf returns the IP version of an address.
func familyOf(ip netip.Addr) families {
	if ip.Is4() || ip.Is4In6() {
		return v4
	}
	return v6
}
