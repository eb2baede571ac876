package registry

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestReadyWhileTerminating: an endpoint that is ready although its pod terminates, as those of
// Services with publishNotReadyAddresses are, stays.
func TestReadyWhileTerminating(t *testing.T) {
	b := newTestState(t)
	p := pod("c1", "a", "10.0.0.1")
	s := slice("c1", "hello", "x", p)
	s.Endpoints[0].Ready, s.Endpoints[0].Terminating = true, true
	b.apply(up(service("c1", "hello")), up(p), up(s))
	if eps := b.endpoints(); len(eps) != 1 || eps[0].Health != snapshot.Healthy {
		t.Errorf("endpoints %+v, want a healthy one", eps)
	}
}

// TestOmitted: omitted endpoints are listed as long as no proxy gets them.
func TestOmitted(t *testing.T) {
	r := run(t, "c1")
	known, late := pod("c1", "known", "10.0.0.1"), pod("c1", "late", "10.0.0.2")
	all := slice("c1", "hello", "x", known, late)
	all.Endpoints = append(all.Endpoints, snapshot.SliceEndpoint{Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.3")}, Terminating: true})
	local := service("c1", "local")
	local.VIPs = []netip.Addr{netip.MustParseAddr("10.96.0.1")}
	r.Apply([]snapshot.Event{up(service("c1", "hello")), up(known), up(all), up(local)})
	r.Expect("c2")
	r.Apply([]snapshot.Event{up(service("c2", "hello")), up(slice("c2", "hello", "y", pod("c2", "", "10.96.0.1")))})
	r.Synced("c1")
	r.Synced("c2")
	r.next(t)
	want := facts.Omitted{Number: 3, First: []facts.OmittedEndpoint{
		{Cluster: "c1", Address: netip.MustParseAddr("10.0.0.2"), Reason: facts.OmittedNoPod},
		{Cluster: "c1", Address: netip.MustParseAddr("10.0.0.3"), Reason: facts.OmittedTerminating},
		{Cluster: "c2", Address: netip.MustParseAddr("10.96.0.1"), Reason: facts.OmittedTakesLocal},
	}}
	if diff := cmp.Diff(want, r.Omitted(host), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	r.Apply([]snapshot.Event{up(late), down(local)})
	for r.Omitted(host).Number != 1 {
		r.next(t)
	}
	many := slice("c1", "hello", "x", known)
	for i := range 2 * facts.MaxOmitted {
		many.Endpoints = append(many.Endpoints, snapshot.SliceEndpoint{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})}, Pod: fmt.Sprint("no-", i)})
	}
	r.Apply([]snapshot.Event{up(many)})
	for r.Omitted(host).Number != 2*facts.MaxOmitted {
		r.next(t)
	}
	if got := r.Omitted(host); len(got.First) != facts.MaxOmitted {
		t.Errorf("%d are listed, want %d", len(got.First), facts.MaxOmitted)
	}
	r.Remove("c1")
	r.Remove("c2")
	for r.Omitted(host).Number != 0 {
		r.next(t)
	}
}
