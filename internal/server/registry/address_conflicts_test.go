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
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// vip returns a Service with one cluster IP, created some hours after epoch.
func vip(c mesh.ClusterID, n, address string, hours int) *snapshot.Service {
	s := service(c, n)
	s.VIPs, s.Created = []netip.Addr{netip.MustParseAddr(address)}, epoch.Add(time.Duration(hours)*time.Hour)
	return s
}

// used returns "service address" for each address that proxies of the cluster use.
func (b *testState) used(c mesh.ClusterID) []string {
	var out []string
	for _, svc := range b.snap.Services.All() {
		for _, a := range svc.For(c).VIPs {
			out = append(out, svc.Name+" "+a.String())
		}
	}
	slices.Sort(out)
	return out
}

// TestLocalServiceKeepsItsAddress: proxies use an address for the Service in their own
// cluster, even if another one is older.
func TestLocalServiceKeepsItsAddress(t *testing.T) {
	const shared = "10.96.0.7"
	for _, tc := range []struct {
		name      string
		services  []*snapshot.Service
		c1, c2    []string // as proxies of the clusters use addresses
		conflicts []string
	}{
		{
			"an older one of another cluster",
			[]*snapshot.Service{vip("c1", "young", shared, 1), vip("c2", "old", shared, 0)},
			[]string{"young 10.96.0.7"},
			[]string{"old 10.96.0.7"},
			[]string{"10.96.0.7 [c2] old young", "10.96.0.7 [c1] young old"},
		},
		{
			"a younger one of another cluster",
			[]*snapshot.Service{vip("c1", "old", shared, 0), vip("c2", "young", shared, 1)},
			[]string{"old 10.96.0.7"},
			[]string{"young 10.96.0.7"},
			[]string{"10.96.0.7 [c1] old young", "10.96.0.7 [c2] young old"},
		},
		{
			"two of one cluster",
			[]*snapshot.Service{vip("c1", "young", shared, 1), vip("c1", "old", shared, 0)},
			[]string{"old 10.96.0.7"},
			[]string{"old 10.96.0.7"},
			[]string{"10.96.0.7 [c1 c2] old young"},
		},
		{
			"both clusters have both, with addresses of their own",
			[]*snapshot.Service{vip("c1", "a", shared, 0), vip("c1", "b", "10.96.0.8", 0), vip("c2", "a", "10.96.0.8", 0), vip("c2", "b", shared, 0)},
			[]string{"a 10.96.0.7", "b 10.96.0.8"},
			[]string{"a 10.96.0.8", "b 10.96.0.7"},
			nil,
		},
		{
			"one name has one address everywhere",
			[]*snapshot.Service{vip("c1", "a", shared, 0), vip("c2", "a", shared, 1)},
			[]string{"a 10.96.0.7"},
			[]string{"a 10.96.0.7"},
			nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, order := range []string{"as given", "reverse"} {
				var log bytes.Buffer
				b := newTestState(t)
				b.s.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
				list := slices.Clone(tc.services)
				if order == "reverse" {
					slices.Reverse(list)
				}
				for _, s := range list { // one after the other
					b.apply(up(s))
				}
				b.apply(up(list[0]))
				if got := b.used("c1"); !slices.Equal(got, tc.c1) {
					t.Errorf("%s: proxies of c1 use %q, want %q", order, got, tc.c1)
				}
				if got := b.used("c2"); !slices.Equal(got, tc.c2) {
					t.Errorf("%s: proxies of c2 use %q, want %q", order, got, tc.c2)
				}
				var conflicts []string
				short := func(host string) string { return strings.TrimSuffix(host, ".sample.svc.cluster.local") }
				for _, c := range b.s.report.conflicts {
					conflicts = append(conflicts, fmt.Sprintln(c.Address, c.Clusters, short(c.Used), short(c.Unused)))
				}
				if got := strings.Fields(strings.Join(conflicts, "")); !slices.Equal(got, strings.Fields(strings.Join(tc.conflicts, " "))) {
					t.Errorf("%s: conflicts %q, want %q", order, conflicts, tc.conflicts)
				}
				if len(list) > 2 {
					continue // which has conflicts on the way
				}
				if n := strings.Count(log.String(), "two services have one address"); n != len(tc.conflicts) {
					t.Errorf("%s: %d warnings, want %d:\n%s", order, n, len(tc.conflicts), &log)
				}
				b.apply(down(list[len(list)-1]))
				if n := len(b.s.report.conflicts); n > 0 {
					t.Errorf("%s: %d conflicts are left", order, n)
				}
			}
		})
	}
}

// TestManyAddressConflicts: a cluster with thousands of conflicts causes only a few log
// lines.
func TestManyAddressConflicts(t *testing.T) {
	var log bytes.Buffer
	b := newTestState(t)
	b.s.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	events := []snapshot.Event{up(vip("c1", "victim", "10.96.0.7", 1))}
	for i := range 5000 {
		events = append(events, up(vip("c2", fmt.Sprintf("svc-%d", i), "10.96.0.7", 0)))
	}
	b.apply(events...)
	if got := b.used("c1"); !slices.Equal(got, []string{"victim 10.96.0.7"}) {
		t.Errorf("proxies of c1 use %d addresses", len(got))
	}
	if n := strings.Count(log.String(), "\n"); n != maxLogged+1 || !strings.Contains(log.String(), "more services share addresses") {
		t.Errorf("%d lines", n)
	}
}

// TestAddressesOfOthers: endpoints and gateways of a remote cluster with addresses of
// local Services are refused, and so are too many gateways. They come back when the
// address is free. Sources refuse addresses such as 127.0.0.1.
func TestAddressesOfOthers(t *testing.T) {
	var log bytes.Buffer
	b := newTestState(t)
	logger := slog.New(slog.NewTextHandler(&log, nil))
	b.s.cfg.Log, b.s.Cfg.Log = logger, logger
	local := service("c1", "victim")
	local.VIPs = []netip.Addr{netip.MustParseAddr("10.96.0.7")}
	thief, honest := pod("c2", "thief", "10.96.0.7"), pod("c2", "honest", "10.2.0.1")
	b.apply(up(local), up(service("c1", "hello")), up(service("c2", "hello")), up(thief), up(honest), up(slice("c2", "hello", "x", thief, honest)))
	if got, want := addresses(b.snap), []string{"10.2.0.1"}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
	// Behind a gateway the endpoint has another address. A network without a gateway is
	// reached directly.
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
		t.Errorf("endpoints %v, want both: the address is free", got)
	}

	b.apply(up(gateway("c2", "n2", "10.96.0.7", "192.0.2.1")))
	if n := len(b.snap.Gateways.ByNetwork["n2"]); n != 2 {
		t.Fatalf("%d gateways, want 2", n)
	}
	b.apply(up(local))
	if list := b.snap.Gateways.ByNetwork["n2"]; len(list) != 1 || list[0].Address.String() != "192.0.2.1" {
		t.Errorf("gateways %v, want that with the address of its own", list)
	}
	if got, want := b.s.report.refused["c2"], (facts.RefusedGateways{Number: 1, First: []facts.RefusedGateway{
		{Network: "n2", Address: "10.96.0.7:15443", Reason: "it is the address of a service of the local cluster"},
	}}); !reflect.DeepEqual(got, want) {
		t.Errorf("refused %+v, want %+v", got, want)
	}
	var many []string
	for i := range 10_000 {
		many = append(many, fmt.Sprintf("192.%d.%d.1", 1+i/250, i%250))
	}
	b.apply(up(gateway("c2", "n2", many...)))
	if n := len(b.snap.Gateways.ByNetwork["n2"]); n != facts.MaxGateways {
		t.Errorf("%d gateways, want %d", n, facts.MaxGateways)
	}
	if got := b.s.report.refused["c2"]; got.Number != 10_000-facts.MaxGateways || len(got.First) != facts.MaxRefused ||
		got.First[0].Reason != "the cluster has more than 64 gateway addresses" {
		t.Errorf("refused %+v", got)
	}
	b.apply(up(gateway("c2", "n2", "gateway.example", "192.0.2.1")))
	if got, want := b.s.report.refused["c2"], (facts.RefusedGateways{Number: 1, First: []facts.RefusedGateway{
		{Network: "n2", Address: "gateway.example", Reason: "it is a host name, and host names are not resolved"},
	}}); !reflect.DeepEqual(got, want) {
		t.Errorf("refused %+v, want %+v", got, want)
	}
	noPort := gateway("c2", "n2", "192.0.2.1")
	noPort.Ports = nil
	b.apply(up(noPort))
	if got, want := b.s.report.refused["c2"], (facts.RefusedGateways{Number: 1, First: []facts.RefusedGateway{
		{Network: "n2", Address: "192.0.2.1", Reason: "Service istio-system/eastwest does not expose port 15443"},
	}}); !reflect.DeepEqual(got, want) {
		t.Errorf("refused %+v, want %+v", got, want)
	}
	b.apply(up(gateway("c2", "n2", "192.0.2.1")))
	if len(b.s.report.refused) > 0 {
		t.Errorf("refused %+v, want none", b.s.report.refused)
	}
	for _, want := range []string{
		"endpoint of a remote cluster has the address of a local service: it is not used\" cluster=c2 service=sample/hello address=10.96.0.7",
		"gateway of a remote cluster has the address of a local service", "too many gateway addresses", "addresses=10000 used=64",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
}
