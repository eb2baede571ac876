package registry

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// outside returns a ServiceEntry with one TCP port, aged in days.
func outside(namespace, name string, age int, hosts ...string) *snapshot.ServiceEntry {
	e := &snapshot.ServiceEntry{Meta: meta("c1", namespace, name), Hosts: hosts, External: true, Resolution: snapshot.ByDNS}
	e.Created = epoch.Add(time.Duration(-age) * 24 * time.Hour)
	e.Ports = []snapshot.ServicePort{{Name: "tcp", Number: 7000, Protocol: mesh.TCP}}
	return e
}

// seenBy returns the namespace of the service of a host that a namespace sees.
func (b *testState) seenBy(client, host string) string {
	b.t.Helper()
	out := ""
	for _, s := range b.snap.Services.All() {
		if s.Host == host && s.VisibleTo(client) {
			if out != "" {
				b.t.Errorf("%s sees the host %s of %s and of %s", client, host, out, s.Namespace)
			}
			out = s.Namespace
		}
	}
	return out
}

// TestServiceEntryVisibility: with applyToSidecars, serviceEntryVisibility replaces exportTo.
func TestServiceEntryVisibility(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	policy := func(visibility meshv1alpha1.ServiceEntryVisibility_Visibility, team string) *meshv1alpha1.ServiceEntryVisibility_Policy {
		return &meshv1alpha1.ServiceEntryVisibility_Policy{Visibility: visibility, MatchingRules: []*meshv1alpha1.ServiceEntryVisibility_MatchRule{{
			Matcher: &meshv1alpha1.ServiceEntryVisibility_MatchRule_NamespaceSelector{
				NamespaceSelector: &meshv1alpha1.LabelSelector{MatchLabels: map[string]string{"team": team}},
			},
		}}}
	}
	settings := func(apply bool) *snapshot.MeshSettings {
		return &snapshot.MeshSettings{Meta: meta("c1", "istio-system", "istio"), Mesh: &meshv1alpha1.MeshConfig{ServiceEntryVisibility: &meshv1alpha1.ServiceEntryVisibility{
			ApplyToSidecars: apply, DefaultVisibility: meshv1alpha1.ServiceEntryVisibility_NAMESPACE,
			Policies: []*meshv1alpha1.ServiceEntryVisibility_Policy{
				policy(meshv1alpha1.ServiceEntryVisibility_PUBLIC, "open"), policy(meshv1alpha1.ServiceEntryVisibility_NONE, "closed"),
			},
		}}}
	}
	team := func(name, team string) *snapshot.Namespace {
		return &snapshot.Namespace{Meta: meta("c1", "", name, "team", team)}
	}
	open := outside("open", "e", 0, "open.example.com")
	open.ExportTo = []string{"."}
	b.apply(up(team("open", "open")), up(team("closed", "closed")), up(open), up(outside("closed", "e", 0, "closed.example.com")), up(outside("other", "e", 0, "other.example.com")), up(settings(false)))
	check := func(when string, want map[string][]string) {
		t.Helper()
		for host, clients := range want {
			var got []string
			for _, client := range []string{"open", "closed", "other"} {
				if b.seenBy(client, host) != "" {
					got = append(got, client)
				}
			}
			if !slices.Equal(got, clients) {
				t.Errorf("%s: %s is visible in %v, want %v", when, host, got, clients)
			}
		}
	}
	all := []string{"open", "closed", "other"}
	check("not for sidecars", map[string][]string{"open.example.com": {"open"}, "closed.example.com": all, "other.example.com": all})
	b.apply(up(settings(true)))
	check("for sidecars", map[string][]string{"open.example.com": all, "closed.example.com": nil, "other.example.com": {"other"}})
	b.apply(up(team("closed", "open")))
	check("another label", map[string][]string{"closed.example.com": all})
}

// TestNamespaceSeesOneServiceOfAHost: a Service of Kubernetes precedes ServiceEntries, then
// the client's own namespace counts, then age. Only exported services count.
func TestNamespaceSeesOneServiceOfAHost(t *testing.T) {
	t.Parallel()
	const host = "api.example.com"
	old, middle, young := outside("old", "e", 3, host), outside("middle", "e", 2, host), outside("young", "e", 1, host)
	old.ExportTo = []string{".", "friend"}
	b := newTestState(t)
	b.apply(up(young), up(middle), up(old), up(outside("young", "later", 0, host)))
	want := map[string]string{"old": "old", "friend": "old", "middle": "middle", "young": "young", "elsewhere": "middle"}
	check := func() {
		t.Helper()
		for client, namespace := range want {
			if got := b.seenBy(client, host); got != namespace {
				t.Errorf("%s sees the service of %q, want %q", client, got, namespace)
			}
		}
	}
	check()
	if !b.snap.Private || b.snap.Services.Len() != 3 || b.snap.Endpoints.Len() != 3 {
		t.Errorf("private %v, %d services, %d endpoints", b.snap.Private, b.snap.Services.Len(), b.snap.Endpoints.Len())
	}
	conflict := facts.HostConflict{Host: host, First: "ServiceEntry old/e", Others: []string{"ServiceEntry middle/e", "ServiceEntry young/e"}}
	if got := b.s.report.hostConflicts; len(got) != 1 || !got[0].Equal(conflict) {
		t.Errorf("conflicts %v", got)
	}

	b.apply(down(old))
	want["old"], want["friend"] = "middle", "middle"
	check()
	b.apply(down(middle))
	for client := range want {
		want[client] = "young"
	}
	check()
	if b.apply(down(outside("young", "later", 0, host))); b.snap.Private || len(b.s.report.hostConflicts) > 0 {
		t.Errorf("private %v, conflicts %v", b.snap.Private, b.s.report.hostConflicts)
	}
}

// TestServiceOfKubernetesPrecedesServiceEntry: namespaces that do not see the Service use the
// ServiceEntry.
func TestServiceOfKubernetesPrecedesServiceEntry(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	entry, svc := outside("other", "e", 9, host), service("c1", "hello")
	b.apply(up(entry), up(svc))
	if got := b.seenBy("other", host); got != svc.Namespace || b.snap.Services.Len() != 1 {
		t.Errorf("sees the service of %q, %d services", got, b.snap.Services.Len())
	}
	private := *svc
	private.ExportTo = []string{"."}
	b.apply(up(&private))
	if own, other := b.seenBy(svc.Namespace, host), b.seenBy("other", host); own != svc.Namespace || other != "other" {
		t.Errorf("see the services of %q and %q", own, other)
	}
}

// TestAllocatedAddresses: hosts get different addresses, which later hosts do not change. An
// address in the status takes precedence.
func TestAllocatedAddresses(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	entry := func(i int) *snapshot.ServiceEntry {
		e := outside("shop", fmt.Sprint("e", i), 5000-i, fmt.Sprintf("h%d.example.com", i))
		e.Allocate = true
		return e
	}
	addresses := func(i int) []netip.Addr { return b.snap.Services.Get(fmt.Sprintf("h%d.example.com", i)).Allocated }
	for i := range 2000 {
		b.s.Apply(up(entry(i)))
	}
	b.apply()
	seen := make(map[netip.Addr]bool)
	before := make(map[int][]netip.Addr)
	for i := range 2000 {
		before[i] = addresses(i)
		if len(before[i]) != 2 || !netip.MustParsePrefix("240.240.0.0/16").Contains(before[i][0]) || !netip.MustParsePrefix("2001:2::/48").Contains(before[i][1]) {
			t.Fatalf("host %d has %v", i, before[i])
		}
		for _, ip := range before[i] {
			if seen[ip] {
				t.Errorf("%s is given twice", ip)
			}
			seen[ip] = true
		}
	}
	for i := 2000; i < 2500; i++ {
		b.s.Apply(up(entry(i)))
	}
	if c := b.apply(); len(c.Services) != 500 {
		t.Errorf("%d services changed, want 500", len(c.Services))
	}
	given := entry(2500)
	given.Allocated = map[string][]netip.Addr{given.Hosts[0]: before[7]}
	c := b.apply(up(given))
	if got := addresses(2500); !slices.Equal(got, before[7]) || slices.Equal(addresses(7), before[7]) || len(c.Services) > 4 {
		t.Errorf("the status counts: %v, the other host has %v, %d services changed", got, addresses(7), len(c.Services))
	}
}

// TestServiceEntrySelects: a selector finds pods and WorkloadEntries of its namespace in the
// local cluster, each with its health.
func TestServiceEntrySelects(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	e := outside("sample", "e", 0, "stock.internal")
	e.External, e.Resolution, e.Selector = false, snapshot.ByEndpoints, map[string]string{"app": "hello"}
	ready, unready := pod("c1", "a", "10.1.0.1"), pod("c1", "b", "10.1.0.2")
	unready.Unready = true
	waiting := pod("c1", "waiting", "10.1.0.3")
	waiting.IPs, waiting.ServiceAccount = nil, "waiting"
	b.apply(up(e), up(ready), up(unready), up(waiting), up(pod("c2", "c", "10.2.0.1")), up(workloadEntry("c1", "vm", "192.0.2.7")))
	eps := b.snap.Endpoints.Get("stock.internal").ByPort["tcp"]
	if len(eps) != 3 || eps[0].Health != snapshot.Healthy || eps[1].Health != snapshot.Unhealthy || eps[2].Address != ips("192.0.2.7")[0] {
		t.Errorf("endpoints %+v", eps)
	}
	if accounts := b.snap.Services.Get("stock.internal").Accounts; slices.ContainsFunc(accounts, func(id string) bool { return strings.Contains(id, "waiting") }) {
		t.Errorf("a pod without an address has the service account of %v", accounts)
	}
	now := *unready
	now.Unready = false
	if c := b.apply(up(&now)); len(c.Endpoints) != 1 || len(c.Pods) > 0 || len(c.Services) > 0 {
		t.Errorf("after the pod is ready: %+v", c)
	}
}

// TestDefaultExportOfServiceEntries: a ServiceEntry without exportTo has the default of the
// mesh, and so has the Service that precedes it.
func TestDefaultExportOfServiceEntries(t *testing.T) {
	t.Parallel()
	const api = "api.example.com"
	b := newTestState(t)
	open := outside("open", "e", 1, api)
	open.ExportTo = []string{"*"}
	b.apply(up(outside("shop", "e", 2, api)), up(open), up(service("c1", "hello")), up(outside("other", "e", 1, host)))
	for client, want := range map[string]string{"shop": "shop", "open": "open", "elsewhere": "shop"} {
		if got := b.seenBy(client, api); got != want {
			t.Errorf("%s sees the service of %q, want %q", client, got, want)
		}
	}
	if got := b.seenBy("other", host); got != "sample" {
		t.Errorf("other sees the service of %q, want the Service of sample", got)
	}

	b.apply(up(&snapshot.MeshSettings{Meta: meta("c1", "istio-system", "istio"), Mesh: &meshv1alpha1.MeshConfig{DefaultServiceExportTo: []string{"."}}}))
	for client, want := range map[string]string{"shop": "shop", "open": "open", "elsewhere": "open"} {
		if got := b.seenBy(client, api); got != want {
			t.Errorf("by default private: %s sees the service of %q, want %q", client, got, want)
		}
	}
	if got := b.seenBy("other", host); got != "other" {
		t.Errorf("by default private: other sees the service of %q, want its own", got)
	}
}

// TestServiceHasNamesOfServiceEntry: ServiceEntries of the namespace of a Service add subject
// alternative names to it. ServiceEntries of other namespaces do not, nor do services outside
// the mesh.
func TestServiceHasNamesOfServiceEntry(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	p := pod("c1", "a", "10.1.0.1")
	named := func(namespace, name string, external bool) *snapshot.ServiceEntry {
		e := outside(namespace, name, 1, host)
		e.External, e.SubjectAltNames = external, []string{"spiffe://td/" + namespace + "/" + name}
		return e
	}
	own := named("sample", "own", false)
	b.apply(up(service("c1", "hello")), up(p), up(slice("c1", "hello", "x", p)), up(own), up(named("sample", "external", true)), up(named("other", "e", false)))
	account := "spiffe://cluster.local/ns/sample/sa/hello"
	if got, want := b.snap.Services.Get(host).Accounts, []string{account, "spiffe://td/sample/own"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	if c := b.apply(down(own)); len(c.Services) != 1 || !slices.Equal(b.snap.Services.Get(host).Accounts, []string{account}) {
		t.Errorf("without the ServiceEntry: names %q, %d services changed", b.snap.Services.Get(host).Accounts, len(c.Services))
	}
}

// TestWorkloadEntryWithHostName: an entry with a host name is an endpoint of services that
// proxies resolve by DNS, and of no others.
func TestWorkloadEntryWithHostName(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	byDNS, byAddress := outside("sample", "dns", 0, "dns.internal"), outside("sample", "static", 0, "static.internal")
	byDNS.Selector, byAddress.Selector = map[string]string{"app": "hello"}, map[string]string{"app": "hello"}
	byAddress.Resolution = snapshot.ByEndpoints
	w := workloadEntry("c1", "vm", "192.0.2.7")
	w.IPs, w.Target, w.Network = nil, "vm.example.net", "elsewhere"
	b.apply(up(byDNS), up(byAddress), up(service("c1", "hello")), up(w))
	eps := b.snap.Endpoints.Get("dns.internal").ByPort["tcp"]
	if len(eps) != 1 || eps[0].Target != "vm.example.net" || eps[0].Network != "" {
		t.Errorf("endpoints by DNS %+v", eps)
	}
	if got := b.snap.Endpoints.Get("static.internal").ByPort; len(got) > 0 || len(b.endpoints()) > 0 {
		t.Errorf("endpoints by address %v and of the Service %v, want none", got, b.endpoints())
	}
}

// TestPlacesOfMergedServiceEntries: each port has the addresses, the ranges and the names of the
// ServiceEntries that have it. A ServiceEntry without addresses makes only its own ports reachable at
// any address, and one all of whose addresses are refused none.
func TestPlacesOfMergedServiceEntries(t *testing.T) {
	t.Parallel()
	const host = "api.example.com"
	entry := func(name string, age int, number uint32, vip, cidr, san string) *snapshot.ServiceEntry {
		e := outside("shop", name, age, host)
		e.Ports = []snapshot.ServicePort{{Name: "tcp", Number: number, Protocol: mesh.TCP}}
		if vip != "" {
			e.VIPs = []netip.Addr{netip.MustParseAddr(vip)}
		}
		if cidr != "" {
			e.CIDRs = []netip.Prefix{netip.MustParsePrefix(cidr)}
		}
		if san != "" {
			e.SubjectAltNames = []string{san}
		}
		e.Resolution = snapshot.ByDestination
		return e
	}
	anywhere, refused := entry("anywhere", 6, 4, "", "", ""), entry("refused", 5, 5, "", "", "")
	anywhere.AnyAddress = true
	b := newTestState(t)
	b.apply(up(entry("one", 9, 1, "192.0.2.1", "", "one")), up(entry("two", 8, 2, "192.0.2.2", "10.0.0.0/8", "two")),
		up(entry("three", 7, 1, "192.0.2.3", "", "three")), up(anywhere), up(refused))
	svc := b.snap.Services.Get(host)
	for number, want := range map[uint32]string{
		1: "[192.0.2.1 192.0.2.3] [] [one three] false", 2: "[192.0.2.2] [10.0.0.0/8] [two] false",
		4: "[] [] [] true", 5: "[] [] [] false", 6: "[] [] [] false",
	} {
		got := fmt.Sprint(svc.AddressesOf(&svc.Clusters[0], number), svc.RangesOf(number), svc.NamesOf(number), svc.HasAnyAddress(number))
		if got != want {
			t.Errorf("port %d is at %s, want %s", number, got, want)
		}
	}
	if got := fmt.Sprint(svc.Clusters[0].VIPs); got != "[192.0.2.1 192.0.2.2 192.0.2.3]" {
		t.Errorf("the host has the addresses %s", got)
	}
}

// TestMergedServiceEntries: the ports of ServiceEntries of a namespace with the same
// properties are merged, with their own endpoints. Others are conflicts.
func TestMergedServiceEntries(t *testing.T) {
	t.Parallel()
	const host = "api.example.com"
	entry := func(namespace, name string, age int, port string, number uint32) *snapshot.ServiceEntry {
		e := outside(namespace, name, age, host)
		e.Ports = []snapshot.ServicePort{{Name: port, Number: number, Protocol: mesh.TCP}}
		e.Endpoints = []snapshot.EntryEndpoint{{Target: name + ".example.com"}}
		return e
	}
	b := newTestState(t)
	other := entry("shop", "other", 2, "d", 4)
	other.Resolution = snapshot.ByFirstOfDNS
	otherProtocol := entry("shop", "other-protocol", 5, "f", 1)
	otherProtocol.Ports[0].Protocol = mesh.HTTP
	b.apply(up(entry("shop", "first", 9, "a", 1)), up(entry("shop", "second", 8, "b", 2)), up(entry("shop", "same-number", 7, "c", 1)),
		up(entry("shop", "same-name", 6, "a", 3)), up(other), up(otherProtocol), up(entry("apps", "elsewhere", 1, "e", 5)))
	svc := b.snap.Services.Get(host)
	if len(svc.Ports) != 3 || svc.Ports[0].Number != 1 || svc.Ports[1].Number != 2 || svc.Ports[2].Number != 3 {
		t.Errorf("ports %v, want those of first, second and same-name", svc.Ports)
	}
	for port, want := range map[string][]string{
		"a": {"first.example.com", "same-number.example.com"}, "b": {"second.example.com"}, "a-3": {"same-name.example.com"},
	} {
		var got []string
		for _, e := range svc.Targets.ByPort[port] {
			got = append(got, e.Target)
		}
		if !slices.Equal(got, want) {
			t.Errorf("endpoints of port %s: %v, want %s", port, got, want)
		}
	}
	want := map[string]string{
		"other-protocol": "but proxies use ServiceEntry shop/first first",
		"other":          "but proxies use ServiceEntry shop/first first",
		"elsewhere":      "but only proxies of its namespace use it: others use ServiceEntry shop/first first",
	}
	for _, p := range b.s.problems() {
		if text := "defines the host " + host + ", " + want[p.Object.Name]; p.Kind == facts.SharedHost && p.Text != text {
			t.Errorf("%s: %q, want %q", p.Object.Name, p.Text, text)
		}
		delete(want, p.Object.Name)
	}
	if len(want) > 0 {
		t.Errorf("no problem of %v", want)
	}
	b.apply(down(entry("shop", "second", 8, "b", 2)))
	if svc := b.snap.Services.Get(host); len(svc.Ports) != 2 {
		t.Errorf("ports %v after the second is gone", svc.Ports)
	}
}
