package registry

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestAddressesOfOthers: a remote cluster that gives addresses of
// local services for endpoints and gateways, and 10,000 gateways. What is
// refused comes back when the address is nobody's any more. Addresses such as
// 127.0.0.1 the source refuses before.
func TestAddressesOfOthers(t *testing.T) {
	var log bytes.Buffer
	b := newBench(t)
	b.s.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	local := service("c1", "victim")
	local.VIPs = []netip.Addr{netip.MustParseAddr("10.96.0.7")}
	thief, honest := pod("c2", "thief", "10.96.0.7"), pod("c2", "honest", "10.2.0.1")
	b.apply(up(local), up(service("c1", "hello")), up(service("c2", "hello")), up(thief), up(honest), up(slice("c2", "hello", "x", thief, honest)))
	if got, want := addresses(b.snap), []string{"10.2.0.1"}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
	// Behind a gateway the address is another one. A network without one is reached
	// directly.
	b.apply(up(system("c1", "n1")), up(system("c2", "n2")))
	if got := addresses(b.snap); len(got) != 1 {
		t.Errorf("endpoints of another network without gateways %v, want one", got)
	}
	b.apply(up(gateway("c2", "n2", "192.0.2.9")))
	if got := addresses(b.snap); len(got) != 2 {
		t.Errorf("endpoints of another network %v, want both", got)
	}
	b.apply(down(gateway("c2", "n2", "192.0.2.9")))
	if got := addresses(b.snap); len(got) != 1 {
		t.Errorf("endpoints of a network whose gateway went %v, want one", got)
	}
	b.apply(down(system("c1", "n1")), down(system("c2", "n2")))
	if got := addresses(b.snap); len(got) != 1 {
		t.Errorf("endpoints %v, want one", got)
	}
	b.apply(down(local))
	if got := addresses(b.snap); len(got) != 2 {
		t.Errorf("endpoints %v, want both: the address is nobody's", got)
	}

	b.apply(up(gateway("c2", "n2", "10.96.0.7", "192.0.2.1")))
	if n := len(b.snap.Gateways.ByNetwork["n2"]); n != 2 {
		t.Fatalf("%d gateways, want 2", n)
	}
	b.apply(up(local))
	if list := b.snap.Gateways.ByNetwork["n2"]; len(list) != 1 || list[0].Address.String() != "192.0.2.1" {
		t.Errorf("gateways %v, want that with the address of its own", list)
	}
	if got, want := b.s.refused["c2"], (RefusedGateways{1, []RefusedGateway{
		{"n2", "10.96.0.7:15443", "it is the address of a service of the own cluster"},
	}}); !reflect.DeepEqual(got, want) {
		t.Errorf("refused %+v, want %+v", got, want)
	}
	var many []string
	for i := range 10_000 {
		many = append(many, fmt.Sprintf("192.%d.%d.1", 1+i/250, i%250))
	}
	b.apply(up(gateway("c2", "n2", many...)))
	if n := len(b.snap.Gateways.ByNetwork["n2"]); n != maxGateways {
		t.Errorf("%d gateways, want %d", n, maxGateways)
	}
	if got := b.s.refused["c2"]; got.Number != 10_000-maxGateways || len(got.First) != maxRefused ||
		got.First[0].Reason != "the cluster has more than 64 addresses of gateways" {
		t.Errorf("refused %+v", got)
	}
	b.apply(up(gateway("c2", "n2", "gateway.example", "192.0.2.1")))
	if got, want := b.s.refused["c2"], (RefusedGateways{1, []RefusedGateway{
		{"n2", "gateway.example", "it is a host name, and host names are not resolved"},
	}}); !reflect.DeepEqual(got, want) {
		t.Errorf("refused %+v, want %+v", got, want)
	}
	noPort := gateway("c2", "n2", "192.0.2.1")
	noPort.Ports = nil
	b.apply(up(noPort))
	if got, want := b.s.refused["c2"], (RefusedGateways{1, []RefusedGateway{
		{"n2", "192.0.2.1", "service istio-system/eastwest does not expose port 15443"},
	}}); !reflect.DeepEqual(got, want) {
		t.Errorf("refused %+v, want %+v", got, want)
	}
	b.apply(up(gateway("c2", "n2", "192.0.2.1")))
	if len(b.s.refused) > 0 {
		t.Errorf("refused %+v, want none", b.s.refused)
	}
	for _, want := range []string{
		"endpoint of another cluster has the address of a service of this one: it is not used\" cluster=c2 service=sample/hello address=10.96.0.7",
		"gateway of another cluster has the address of a service of this one", "too many addresses of gateways", "addresses=10000 used=64",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
}
