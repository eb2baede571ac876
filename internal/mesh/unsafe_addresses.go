package mesh

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
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
// IPv4 address it returns the kind of the latter.
func AddressKindOf(addr netip.Addr) AddressKind {
	addr = addr.WithZone("").Unmap()
	if addr == netip.IPv6Loopback() {
		return AddressLoopback
	}
	if slices.ContainsFunc(embedding, func(n netip.Prefix) bool { return n.Contains(addr) }) {
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

// HostKindOf returns the kind of a host, which is a name or an IP address. It knows the names that
// the hosts files and the resolvers of most machines have without DNS, and the notations of IPv4
// addresses that resolvers accept, such as 127.1 and 0x7f000001. Every other name is ordinary,
// although DNS may resolve it to any address.
func HostKindOf(host string) AddressKind {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		return AddressKindOf(addr)
	}
	if addr, ok := parseOldIPv4(host); ok {
		return AddressKindOf(addr)
	}
	if kind := localNames[host]; kind != "" {
		return kind
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	switch last {
	case "localhost", "localdomain", "localdomain4", "localdomain6":
		return AddressLoopback
	}
	return AddressOrdinary
}

// localNames are the names of addresses that are not ordinary.
var localNames = map[string]AddressKind{
	"localhost4":   AddressLoopback,
	"localhost6":   AddressLoopback,
	"loopback":     AddressLoopback,
	"ip6-loopback": AddressLoopback,
	// Kubernetes and Debian write these into hosts files.
	"ip6-localhost":   AddressLoopback,
	"ip6-localnet":    AddressLinkLocal,
	"ip6-mcastprefix": AddressMulticast,
	"ip6-allnodes":    AddressMulticast,
	"ip6-allrouters":  AddressMulticast,
	"ip6-allhosts":    AddressMulticast,
	"broadcasthost":   AddressMulticast,
	// Clouds resolve these to their metadata services.
	"metadata":                   AddressMetadata,
	"metadata.google.internal":   AddressMetadata,
	"metadata.goog":              AddressMetadata,
	"metadata.tencentyun.com":    AddressMetadata,
	"instance-data":              AddressMetadata,
	"instance-data.ec2.internal": AddressMetadata,
}

// parseOldIPv4 parses the notations of the C function inet_aton: one to four numbers, decimal,
// octal or hexadecimal, of which the last one fills the remaining bytes.
func parseOldIPv4(text string) (netip.Addr, bool) {
	parts := strings.Split(text, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var address uint64
	for i, part := range parts {
		bits := 8
		if i == len(parts)-1 {
			bits = 8 * (5 - len(parts))
		}
		if part == "0x" {
			part = "0" // some resolvers read no digits as zero
		}
		n, err := strconv.ParseUint(part, 0, bits)
		if err != nil || strings.ContainsAny(part, "_ob") && !strings.HasPrefix(part, "0x") {
			return netip.Addr{}, false
		}
		address = address<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(address >> 24), byte(address >> 16), byte(address >> 8), byte(address)}), true
}

// embedding are the prefixes of IPv6 addresses that end with an IPv4 address.
var embedding = []netip.Prefix{
	netip.MustParsePrefix("64:ff9b::/96"),    // NAT64
	netip.MustParsePrefix("64:ff9b:1::/96"),  // NAT64 of a site
	netip.MustParsePrefix("::ffff:0:0:0/96"), // SIIT
	netip.MustParsePrefix("::/96"),           // IPv4-compatible, with ::6, from which Envoy calls its application
}

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
