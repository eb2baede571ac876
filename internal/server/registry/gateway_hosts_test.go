package registry

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func ips(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// TestHostNamesOfGateways: a gateway has the current addresses of its host name, except
// those that a remote cluster must not have.
func TestHostNamesOfGateways(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	b.s.Cfg.ResolvesHosts = true
	resolved := func(hosts map[string][]netip.Addr) { b.s.setHosts(hosts) }
	want := func(network mesh.NetworkID, texts ...string) {
		t.Helper()
		var got []string
		for _, g := range b.snap.Gateways.ByNetwork[network] {
			got = append(got, fmt.Sprintf("%s of %s", netip.AddrPortFrom(g.Address, uint16(g.Port)), g.Cluster))
		}
		if !slices.Equal(got, texts) {
			t.Errorf("gateways of %s: %q, want %q", network, got, texts)
		}
	}
	vip := service("c1", "taken")
	vip.VIPs = ips("10.96.0.7")
	b.apply(up(vip), up(gateway("c1", "n1", "LB.example")), up(gateway("c2", "n2", "lb.elsewhere", "192.0.2.9", "not_a_name", "gone.elsewhere")))
	if got := b.s.Found.Get(nil).HostNames(); !slices.Equal(got, []string{"gone.elsewhere", "lb.elsewhere", "lb.example"}) {
		t.Errorf("to resolve: %q", got)
	}
	want("n1")
	want("n2", "192.0.2.9:15443 of c2")
	resolved(map[string][]netip.Addr{
		"lb.example":   ips("127.0.0.5", "192.0.2.1", "192.0.2.2"),
		"lb.elsewhere": ips("10.96.0.7", "127.0.0.5", "169.254.169.254", "192.0.2.3", "2001:db8::1"),
	})
	b.apply()
	want("n1", "127.0.0.5:15443 of c1", "192.0.2.1:15443 of c1", "192.0.2.2:15443 of c1")
	want("n2", "192.0.2.3:15443 of c2", "192.0.2.9:15443 of c2", "[2001:db8::1]:15443 of c2")
	var reasons []string
	for _, r := range b.s.report.refused["c2"].First {
		reasons = append(reasons, r.Address+": "+r.Reason)
	}
	slices.Sort(reasons)
	if wanted := []string{
		"10.96.0.7:15443: it is the address of a service of the local cluster",
		"gone.elsewhere: no address of this host name is known",
		"lb.elsewhere: it resolves to 127.0.0.5, which is a loopback address",
		"lb.elsewhere: it resolves to 169.254.169.254, which is a metadata service address",
		"not_a_name: it is neither an IP address nor a host name",
	}; !slices.Equal(reasons, wanted) {
		t.Errorf("refused: %q", reasons)
	}
	if c := b.apply(); !c.Empty() {
		t.Errorf("nothing new changes something: %+v", c)
	}
	resolved(map[string][]netip.Addr{"lb.example": ips("192.0.2.2")})
	if c := b.apply(); c.Kinds() != snapshot.GatewayFacts {
		t.Errorf("a changed address changed %+v", c)
	}
	want("n1", "192.0.2.2:15443 of c1")
	var many []string
	for i := range 10_000 {
		many = append(many, fmt.Sprintf("lb-%04d.elsewhere", i))
	}
	b.apply(up(gateway("c2", "n2", many...)))
	if got := b.s.Found.Get(nil).HostNames(); len(got) != facts.MaxHosts+1 || got[0] != "lb-0000.elsewhere" || got[facts.MaxHosts-1] != fmt.Sprintf("lb-%04d.elsewhere", facts.MaxHosts-1) {
		t.Errorf("to resolve: %d, %q …", len(got), got[0])
	}
	b.apply(up(gateway("c2", "n2", "192.0.2.9")), up(gateway("c1", "n1")))
	if got := b.s.Found.Get(nil).HostNames(); len(got) > 0 {
		t.Errorf("to resolve still: %q", got)
	}
}

// TestFirstSnapshotKnowsHostNames: the first snapshot waits for an answer about host
// names, even an empty one, so that a restart takes no endpoints from proxies. Later
// ones do not wait.
func TestFirstSnapshotKnowsHostNames(t *testing.T) {
	t.Parallel()
	asked, published := make(chan []string, 10), make(chan *snapshot.Snapshot, 10)
	r := New(Config{
		Local: "c1", Clusters: []mesh.ClusterID{"c1"}, SystemNamespace: "istio-system",
		Publish: func(s *snapshot.Snapshot, c *snapshot.Changes) {
			if s.Seq == 1 && !c.Everywhere {
				t.Error("the first snapshot does not change everything")
			}
			published <- s
		},
		Resolve: func(hosts []string) { asked <- hosts },
		Log:     slog.New(slog.DiscardHandler), Now: time.Now,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	within := time.After(2 * time.Minute)
	ask := func(want ...string) {
		t.Helper()
		select {
		case hosts := <-asked:
			if !slices.Equal(hosts, want) {
				t.Errorf("asked for %q, want %q", hosts, want)
			}
		case <-within:
			t.Fatal("nothing was asked for")
		}
	}
	gateways := func(want int) {
		t.Helper()
		select {
		case s := <-published:
			if n := len(s.Gateways.ByNetwork["n1"]); n != want {
				t.Errorf("%d gateways, want %d", n, want)
			}
		case <-within:
			t.Fatal("nothing was published")
		}
	}
	r.Apply([]snapshot.Event{up(gateway("c1", "n1", "a.example"))})
	r.Synced("c1")
	ask("a.example")
	r.Apply([]snapshot.Event{up(service("c1", "hello"))})
	r.Apply([]snapshot.Event{up(gateway("c1", "n1", "a.example", "b.example"))})
	ask("a.example", "b.example")
	if r.Current() != nil {
		t.Error("a snapshot came before the answer")
	}
	r.SetAddresses(map[string][]netip.Addr{"a.example": ips("192.0.2.1")})
	gateways(1)
	select {
	case <-r.Ready():
	case <-within:
		t.Fatal("not ready")
	}
	r.SetAddresses(map[string][]netip.Addr{"a.example": ips("192.0.2.1"), "b.example": ips("192.0.2.2")})
	gateways(2)
	r.Apply([]snapshot.Event{up(gateway("c1", "n1", "c.example"))})
	ask("c.example")
	gateways(0)
}
