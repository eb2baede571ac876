package mesh

import "net/netip"

// AddressKind is the kind of an IP address. It shows whether connecting to an
// address from an untrusted source is safe.
type AddressKind string

// The values of AddressKind.
const (
	AddressOrdinary    AddressKind = "ordinary"
	AddressLoopback    AddressKind = "loopback"
	AddressUnspecified AddressKind = "unspecified" // connects to this machine
	AddressLinkLocal   AddressKind = "link-local"
	AddressMetadata    AddressKind = "metadata service" // of a cloud, which gives out credentials
	AddressMulticast   AddressKind = "multicast"        // or broadcast
)

// AddressKindOf returns the kind of an address. For an IPv6 address that contains an
// IPv4 address (IPv4-mapped, or the well-known prefix of NAT64) it returns the kind of
// the latter.
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

// isMetadata reports whether a cloud serves its metadata at an address.
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
