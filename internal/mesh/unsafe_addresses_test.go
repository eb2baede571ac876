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
		"64:ff9b:1::7f00:1":      AddressLoopback,
		"::ffff:0:127.0.0.1":     AddressLoopback,
		"::127.0.0.1":            AddressLoopback,
		"::6":                    AddressUnspecified,
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

func TestHostKindOf(t *testing.T) {
	t.Parallel()
	for kind, hosts := range map[AddressKind][]string{
		AddressOrdinary: {
			"", "example.com", "localhost.example.com", "notlocalhost", "metadata.example", "10.0.0.1", "10.1", "0xa000001", "167772161", "012.0.0.1",
			"1.2.3.4.5", "256.0.0.1", "127.0.0.256", "4294967296", "127.0.0x1g", "0b1111111.1", "0o177.1", "1_27.1", "127..1", "web.local",
			"cluster.local", "kubernetes.default.svc.cluster.local", "0x7f.example", "2001:db8::1",
		},
		AddressLoopback: {
			"localhost", "LocalHost", "localhost.", "a.localhost", "localhost.localdomain", "localhost4", "localhost6", "localhost4.localdomain4",
			"localhost6.localdomain6", "ip6-localhost", "ip6-loopback", "IP6-LOOPBACK.", "loopback", "machine.localdomain",
			"127.0.0.1", "127.0.0.1.", "127.1", "127.0.1", "127.65535", "0x7f.1", "0x7f000001", "0X7F.0X0.0X0.0X1", "2130706433", "0177.0.0.1", "017700000001",
			"::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "64:ff9b::7f00:1", "0:0:0:0:0:0:0:1",
		},
		AddressUnspecified: {"0", "0.0", "0.0.0.0", "00", "0x0", "0x", "::", "::ffff:0.0.0.0", "0.1"},
		AddressLinkLocal:   {"169.254.1.1", "0xa9fe0101", "fe80::1", "ip6-localnet"},
		AddressMetadata:    {"169.254.169.254", "2852039166", "0xa9fea9fe", "metadata.google.internal", "metadata.google.internal.", "metadata", "instance-data"},
		AddressMulticast:   {"224.0.0.1", "ff02::1", "4294967295", "ip6-allnodes", "ip6-allrouters"},
	} {
		for _, host := range hosts {
			if got := HostKindOf(host); got != kind {
				t.Errorf("HostKindOf(%q) = %s, want %s", host, got, kind)
			}
		}
	}
}
