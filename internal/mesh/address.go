package mesh

import "net/netip"

// AddressKind tells where an address leads that somebody else chose.
type AddressKind string

// The kinds of addresses.
const (
	AddressOrdinary    AddressKind = "ordinary"
	AddressLoopback    AddressKind = "loopback"         // this machine
	AddressUnspecified AddressKind = "unspecified"      // which is this machine, too
	AddressLinkLocal   AddressKind = "link-local"       // this machine's neighbours
	AddressMetadata    AddressKind = "metadata service" // of a cloud, which hands out credentials
	AddressMulticast   AddressKind = "multicast"        // broadcast, too
)

// AddressKindOf tells what an address is. An IPv4 address within an IPv6 address
// (mapped, or behind the well-known prefix of NAT64) is judged as itself.
func AddressKindOf(addr netip.Addr) AddressKind {
	addr = addr.WithZone("").Unmap()
	if nat64 := netip.MustParsePrefix("64:ff9b::/96"); nat64.Contains(addr) {
		b := addr.As16()
		addr = netip.AddrFrom4([4]byte(b[12:]))
	}
	switch {
	case isMetadata(addr):
		return AddressMetadata
	case addr.IsLoopback():
		return AddressLoopback
	case addr.IsUnspecified(), addr.Is4() && addr.As4()[0] == 0:
		return AddressUnspecified
	case addr.IsLinkLocalUnicast():
		return AddressLinkLocal
	case addr.IsMulticast(), addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return AddressMulticast
	}
	return AddressOrdinary
}

// isMetadata knows the addresses under which clouds offer their metadata.
func isMetadata(addr netip.Addr) bool {
	switch addr.String() {
	case "169.254.169.254", // nearly all
		"169.254.170.2", "169.254.170.23", // AWS: credentials of tasks and pods
		"fd00:ec2::254", "fd00:ec2::23", // AWS
		"fd20:ce::254",    // Google
		"100.100.100.200", // Alibaba
		"168.63.129.16",   // Azure
		"192.0.0.192":     // Oracle
		return true
	}
	return false
}
