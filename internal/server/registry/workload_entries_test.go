package registry

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func workloadEntry(c mesh.ClusterID, n, ip string, labels ...string) *snapshot.WorkloadEntry {
	w := &snapshot.WorkloadEntry{Pod: *pod(c, n, ip, labels...)}
	w.External, w.Node, w.ServiceAccount, w.Workload = true, "", "vm", n
	return w
}

func randomEntry(r *rand.Rand, c mesh.ClusterID) *snapshot.WorkloadEntry {
	w := workloadEntry(c, fmt.Sprintf("w%d", r.IntN(3)), fmt.Sprintf("10.%s.0.%d", c[1:], 1+r.IntN(5)), "app", []string{"hello", "other", "none"}[r.IntN(3)])
	w.HealthChecked, w.Health = r.IntN(2) == 0, snapshot.Condition(r.IntN(3))
	w.Weight = uint32(r.IntN(3))
	if r.IntN(2) == 0 {
		w.Ports = []snapshot.PodPort{{Name: "http", Number: uint32(8080 + r.IntN(2))}}
	}
	return w
}

// TestWorkloadEntryIsAnEndpoint: a WorkloadEntry is an endpoint of the services in its
// cluster and namespace that select it.
func TestWorkloadEntryIsAnEndpoint(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	p, w := pod("c1", "a", "10.1.0.1"), workloadEntry("c1", "vm", "192.0.2.7")
	w.Network, w.Locality, w.Weight = "vms", mesh.Locality{Region: "r", Zone: "vm-zone"}, 3
	w.Ports = []snapshot.PodPort{{Name: "http", Number: 8080}}
	elsewhere := workloadEntry("c1", "elsewhere", "192.0.2.8")
	elsewhere.Namespace = "other"
	b.apply(up(service("c1", "hello")), up(service("c2", "hello")), up(p), up(slice("c1", "hello", "x", p)), up(w), up(elsewhere),
		up(workloadEntry("c1", "of-nobody", "192.0.2.9", "app", "none")), up(system("c1", "n1")))
	eps := b.endpoints()
	if len(eps) != 2 {
		t.Fatalf("endpoints: %+v", eps)
	}
	got := eps[1]
	want := snapshot.Endpoint{
		Address: w.IPs[0], Port: 8080, Cluster: "c1", Network: "vms", Locality: w.Locality, MTLS: true, TLSMode: true,
		Labels: w.Labels, Workload: "vm;sample;hello;;c1", Pod: "c1/sample/entry:vm", Weight: 3,
	}
	if !facts.EqualEndpoint(got, want) {
		t.Errorf("endpoint %+v, want %+v", got, want)
	}
	accounts := b.snap.Services.Get(host).Accounts
	if want := []string{"spiffe://cluster.local/ns/sample/sa/hello", "spiffe://cluster.local/ns/sample/sa/vm"}; !slices.Equal(accounts, want) {
		t.Errorf("accounts %q, want %q", accounts, want)
	}
	if known := b.snap.Pods.Get("c1/sample/entry:vm"); known == nil || !known.External {
		t.Errorf("its proxy finds %+v", known)
	}

	moved := *w
	moved.IPs, moved.Ports, moved.Network = ips("192.0.2.70"), nil, ""
	b.apply(up(&moved))
	if got := b.endpoints()[1]; got.Address != moved.IPs[0] || got.Port != 5000 || got.Network != "n1" {
		t.Errorf("after it moved: %+v", got)
	}
	named := service("c1", "hello")
	named.Ports[0].Target, named.Ports[0].TargetName = 0, "web"
	b.apply(up(named))
	if n := len(b.endpoints()); n != 1 {
		t.Errorf("%d endpoints, want 1: the other one lacks the port", n)
	}
	again := moved
	again.Ports = []snapshot.PodPort{{Name: "web", Number: 9090}}
	b.apply(up(&again))
	if got := b.endpoints()[1]; got.Port != 9090 {
		t.Errorf("with the port: %+v", got)
	}
	other := *named
	other.Selector = map[string]string{"app": "somebody"}
	b.apply(up(&other))
	if n := len(b.endpoints()); n != 1 {
		t.Errorf("%d endpoints of a service that selects none", n)
	}
	b.apply(up(service("c1", "hello")), down(&again))
	if n := len(b.endpoints()); n != 1 || b.snap.Pods.Get("c1/sample/entry:vm") != nil {
		t.Errorf("%d endpoints after it went", n)
	}
}

// TestHealthOfWorkloadEntry: a report of a proxy with the entry's service account
// overrides the status of the object. Other reports have no effect.
func TestHealthOfWorkloadEntry(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	w := workloadEntry("c1", "vm", "192.0.2.7")
	of := snapshot.PodKey{Cluster: "c1", Namespace: "sample", Name: "vm"}
	b.s.SetHealth(facts.HealthReporter{Entry: of, Account: "vm"}, snapshot.True) // before there is the entry
	step := func(what string, healthy, changes bool, change func()) {
		t.Helper()
		change()
		c := b.apply()
		if got := b.endpoints()[0].Health == snapshot.Healthy; got != healthy || (len(c.Endpoints) > 0) != changes {
			t.Errorf("%s: healthy %v, changed %v; want %v, %v", what, got, c.Endpoints, healthy, changes)
		}
	}
	checked := func(health snapshot.Condition) func() {
		return func() {
			now := *w
			now.HealthChecked, now.Health = true, health
			b.s.Apply(up(&now))
		}
	}
	says := func(account string, is snapshot.Condition) func() {
		return func() { b.s.SetHealth(facts.HealthReporter{Entry: of, Account: account}, is) }
	}
	b.s.Apply(up(service("c1", "hello")))
	step("not checked", true, true, func() { b.s.Apply(up(w)) })
	step("says bad, not checked", true, false, says("vm", snapshot.False))
	step("checked", false, true, checked(snapshot.Unknown))
	step("another account says good", false, false, says("other", snapshot.True))
	step("says good", true, true, says("vm", snapshot.True))
	step("the object says bad", true, false, checked(snapshot.False))
	step("another account says bad", true, false, says("other", snapshot.False))
	step("is gone", false, true, says("vm", snapshot.Unknown))
	step("the object says good", true, true, checked(snapshot.True))
	step("says bad", false, true, says("vm", snapshot.False))
	step("is gone again", true, true, says("vm", snapshot.Unknown))
	if b.s.Health.Len() != 1 {
		t.Errorf("kept: %d reports, want 1", b.s.Health.Len())
	}
}

// TestHostileWorkloadEntry: a WorkloadEntry of a remote cluster cannot take the address
// of a local Service.
func TestHostileWorkloadEntry(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	b.apply(up(service("c1", "hello")), up(service("c2", "hello")), up(workloadEntry("c2", "vm", "10.96.0.7")))
	if n := len(b.endpoints()); n != 1 {
		t.Fatalf("%d endpoints, want 1", n)
	}
	vip := service("c1", "taken")
	vip.VIPs = ips("10.96.0.7")
	b.apply(up(vip))
	if eps := b.endpoints(); len(eps) != 0 {
		t.Errorf("endpoints %+v, want none", eps)
	}
	hidden := workloadEntry("c2", "vm", "10.96.0.7")
	hidden.Network = "nowhere"
	b.apply(up(hidden))
	if eps := b.endpoints(); len(eps) != 0 {
		t.Errorf("endpoints of a network without gateways %+v, want none", eps)
	}
	b.apply(down(vip))
	if n := len(b.endpoints()); n != 1 {
		t.Errorf("%d endpoints after the address was free again, want 1", n)
	}
}

// TestOneEntryTouchesItsServices: a change of a WorkloadEntry recomputes only the
// services that select it.
func TestOneEntryTouchesItsServices(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	var events []snapshot.Event
	for i := range 20 {
		n := fmt.Sprintf("svc-%d", i)
		events = append(events, up(service("c1", n)), up(workloadEntry("c1", n, fmt.Sprintf("192.0.2.%d", i), "app", n)))
	}
	b.apply(events...)
	c := b.apply(up(workloadEntry("c1", "svc-7", "192.0.2.200", "app", "svc-8")))
	var touched []string
	for h := range c.Endpoints {
		touched = append(touched, h)
	}
	slices.SortFunc(touched, cmp.Compare)
	if want := []string{"svc-7.sample.svc.cluster.local", "svc-8.sample.svc.cluster.local"}; !slices.Equal(touched, want) {
		t.Errorf("touched %q, want %q", touched, want)
	}
	if c := b.apply(up(workloadEntry("c1", "svc-7", "192.0.2.200", "app", "svc-8"))); !c.Empty() {
		t.Errorf("the same again changes %+v", c)
	}
}
