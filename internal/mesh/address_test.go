package mesh

import (
	"net/netip"
	"testing"
)

func TestKindOf(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]AddressKind{
		"10.0.0.1":               AddressOrdinary,
		"203.0.113.9":            AddressOrdinary,
		"2001:db8::1":            AddressOrdinary,
		"fd00::1":                AddressOrdinary,
		"127.0.0.1":              AddressLoopback,
		"127.8.9.10":             AddressLoopback,
		"::1":                    AddressLoopback,
		"::ffff:127.0.0.1":       AddressLoopback,
		"64:ff9b::7f00:1":        AddressLoopback,
		"0.0.0.0":                AddressUnspecified,
		"0.1.2.3":                AddressUnspecified,
		"::":                     AddressUnspecified,
		"169.254.1.1":            AddressLinkLocal,
		"fe80::1%eth0":           AddressLinkLocal,
		"169.254.169.254":        AddressMetadata,
		"::ffff:169.254.169.254": AddressMetadata,
		"64:ff9b::a9fe:a9fe":     AddressMetadata,
		"fd00:ec2::254":          AddressMetadata,
		"168.63.129.16":          AddressMetadata,
		"224.0.0.1":              AddressMulticast,
		"255.255.255.255":        AddressMulticast,
		"ff02::1":                AddressMulticast,
	} {
		if got := AddressKindOf(netip.MustParseAddr(addr)); got != want {
			t.Errorf("AddressKindOf(%s) = %s, want %s", addr, got, want)
		}
	}
}
