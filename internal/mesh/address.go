package mesh

import (
	"net/netip"
	"slices"
)

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
	if nat64.Contains(addr) {
		b := addr.As16()
		addr = netip.AddrFrom4([4]byte(b[12:]))
	}
	switch {
	case slices.Contains(metadataAddresses, addr):
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

// nat64 is the well-known prefix of IPv6 addresses that contain an IPv4 address.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// metadataAddresses are the addresses at which clouds serve their metadata.
var metadataAddresses = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"), // nearly all
	netip.MustParseAddr("169.254.170.2"),   // AWS: credentials of tasks
	netip.MustParseAddr("169.254.170.23"),  // AWS: credentials of pods
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("fd00:ec2::23"),    // AWS
	netip.MustParseAddr("fd20:ce::254"),    // Google
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("192.0.0.192"),     // Oracle
}
