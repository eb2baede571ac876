package registry

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// numbered returns the metadata of the i-th object of a namespace, which is younger than the others
// before it.
func numbered(ns string, i int) snapshot.Meta {
	m := meta("c1", ns, fmt.Sprintf("o%d", i))
	m.Created = epoch.Add(time.Duration(i) * time.Second)
	return m
}

func manyHosts(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d.example", prefix, i)
	}
	return out
}

func manyPorts(n int) []snapshot.ServicePort {
	out := make([]snapshot.ServicePort, n)
	for i := range out {
		out[i] = snapshot.ServicePort{Name: fmt.Sprintf("p%d", i), Number: uint32(i + 1), Protocol: mesh.HTTP}
	}
	return out
}

// limitedObjects makes objects of each kind with a limit, of which fit fit.
var limitedObjects = []limitedObject{
	{snapshot.KindServiceEntry, 5, func(ns string, i int) snapshot.Object {
		return &snapshot.ServiceEntry{Meta: numbered(ns, i), Hosts: manyHosts(fmt.Sprintf("h%d.%s.", i, ns), 100), Ports: manyPorts(100), Resolution: snapshot.ByDestination}
	}, func(s *snapshot.Snapshot, o snapshot.Object) bool {
		e, _ := o.(*snapshot.ServiceEntry)
		return s.Services.Get(e.Hosts[0]) != nil
	}},
	{snapshot.KindVirtualService, 3, func(ns string, i int) snapshot.Object {
		body := &networkingv1alpha3.HTTPBody{Specifier: &networkingv1alpha3.HTTPBody_String_{String_: strings.Repeat("x", 20_000)}}
		return &snapshot.VirtualService{
			Meta: numbered(ns, i), Hosts: manyHosts(fmt.Sprintf("v%d.%s.", i, ns), 1000), Gateways: []string{snapshot.MeshGateway},
			HTTP: []*networkingv1alpha3.HTTPRoute{{DirectResponse: &networkingv1alpha3.HTTPDirectResponse{Status: 200, Body: body}}},
		}
	}, func(s *snapshot.Snapshot, o snapshot.Object) bool {
		v, _ := o.(*snapshot.VirtualService)
		return s.Routes.Get(v.Hosts[0]) != nil
	}},
	{snapshot.KindAuthorizationPolicy, 4, func(ns string, i int) snapshot.Object {
		return &snapshot.AuthorizationPolicy{Meta: numbered(ns, i), Spec: &securityv1beta1.AuthorizationPolicy{Rules: []*securityv1beta1.Rule{{
			To: []*securityv1beta1.Rule_To{{Operation: &securityv1beta1.Operation{Hosts: manyHosts("h", 24_000)}}},
		}}}}
	}, func(s *snapshot.Snapshot, o snapshot.Object) bool {
		for p := range snapshot.AuthorizationPolicies(s.Namespaces.Get(o.Key().Namespace)) {
			if p.Name == o.Key().Name {
				return len(p.Doubtful) == 0
			}
		}
		return false
	}},
	{snapshot.KindRequestAuthentication, 2, func(ns string, i int) snapshot.Object {
		return &snapshot.RequestAuthentication{Meta: numbered(ns, i), Kind: snapshot.KindRequestAuthentication, Spec: &securityv1beta1.RequestAuthentication{
			JwtRules: []*securityv1beta1.JWTRule{{Issuer: "me", Jwks: strings.Repeat("x", 8_000_000)}},
		}}
	}, func(s *snapshot.Snapshot, o snapshot.Object) bool {
		for p := range snapshot.Policies[*securityv1beta1.RequestAuthentication](s.Namespaces.Get(o.Key().Namespace), snapshot.KindRequestAuthentication) {
			if p.Name == o.Key().Name {
				return p.Spec.GetJwtRules()[0].GetIssuer() == "me"
			}
		}
		return false
	}},
	{snapshot.KindGateway, 5, func(ns string, i int) snapshot.Object {
		servers := make([]*networkingv1alpha3.Server, 1000)
		for j := range servers {
			servers[j] = &networkingv1alpha3.Server{Hosts: []string{"*"}, Port: &networkingv1alpha3.Port{Number: uint32(j + 1), Protocol: "HTTP"}}
		}
		return &snapshot.Gateway{Meta: numbered(ns, i), Kind: snapshot.KindGateway, Spec: &networkingv1alpha3.Gateway{Servers: servers}}
	}, func(s *snapshot.Snapshot, o snapshot.Object) bool {
		return slices.ContainsFunc(s.GatewayConfigs, func(g *snapshot.Gateway) bool { return g.Key() == o.Key() })
	}},
	plugins(snapshot.KindWasmPlugin), plugins(snapshot.KindTrafficExtension),
}

type limitedObject struct {
	kind snapshot.Kind
	fit  int
	make func(ns string, i int) snapshot.Object
	// used reports whether the object is used.
	used func(s *snapshot.Snapshot, o snapshot.Object) bool
}

// plugins makes plugins of a kind.
func plugins(kind snapshot.Kind) limitedObject {
	return limitedObject{kind, 8, func(ns string, i int) snapshot.Object {
		return &snapshot.WasmPlugin{Meta: numbered(ns, i), Kind: kind, Spec: &extensionsv1alpha1.WasmPlugin{Url: strings.Repeat("x", 1_000_000)}}
	}, func(s *snapshot.Snapshot, o snapshot.Object) bool {
		for p := range snapshot.Policies[*extensionsv1alpha1.WasmPlugin](s.Namespaces.Get(o.Key().Namespace), kind) {
			if p.Name == o.Key().Name {
				return true
			}
		}
		return false
	}}
}

// TestLimitsOfNamespaces: of the objects of a namespace that exceed a limit together, the youngest
// are not used, and are reported. Other namespaces and the root namespace have no part in this.
func TestLimitsOfNamespaces(t *testing.T) {
	t.Parallel()
	for _, tt := range limitedObjects {
		t.Run(string(tt.kind), func(t *testing.T) {
			t.Parallel()
			b := newTestState(t)
			var tenant, others []snapshot.Object
			for i := range tt.fit + 2 {
				tenant = append(tenant, tt.make("tenant", i))
				others = append(others, tt.make("istio-system", i))
			}
			others = append(others, tt.make("other", 0))
			for _, o := range slices.Concat(tenant, others) {
				b.apply(up(o))
			}
			check := func(when string, beyond ...snapshot.Object) {
				t.Helper()
				for _, o := range slices.Concat(tenant, others) {
					if used, want := tt.used(b.snap, o), !slices.Contains(beyond, o); used != want {
						t.Errorf("%s: %s is used: %v, want %v", when, o.Key(), used, want)
					}
				}
				var reported []snapshot.Key
				for _, p := range b.s.problems() {
					if p.Kind == facts.BeyondLimit {
						reported = append(reported, p.Object)
						if !strings.Contains(p.Text, "more than") || !strings.Contains(p.Text, "of namespace tenant") {
							t.Errorf("%s: the problem %q names no limit", when, p.Text)
						}
					}
				}
				for _, o := range beyond {
					if !slices.Contains(reported, o.Key()) {
						t.Errorf("%s: reported are %v, want %s", when, reported, o.Key())
					}
				}
				if len(reported) != len(beyond) {
					t.Errorf("%s: reported are %v, want %d", when, reported, len(beyond))
				}
			}
			n := len(tenant)
			check("all", tenant[n-2], tenant[n-1])
			b.apply(down(tenant[0]))
			tenant = tenant[1:]
			check("without the oldest", tenant[n-2])
			again := newTestState(t) // in another order
			for _, o := range slices.Backward(slices.Concat(tenant, others)) {
				again.s.Apply(up(o))
			}
			again.apply()
			b = again
			check("read again", tenant[n-2])
		})
	}
}

// TestPoliciesBeyondLimitsAreClosed: a policy that is not used permits nothing, and refuses what it
// could refuse, for the same workloads.
func TestPoliciesBeyondLimitsAreClosed(t *testing.T) {
	t.Parallel()
	for _, action := range []securityv1beta1.AuthorizationPolicy_Action{securityv1beta1.AuthorizationPolicy_ALLOW, securityv1beta1.AuthorizationPolicy_DENY} {
		p := &snapshot.AuthorizationPolicy{Meta: numbered("tenant", 1), Spec: &securityv1beta1.AuthorizationPolicy{Action: action, Rules: []*securityv1beta1.Rule{{
			To: []*securityv1beta1.Rule_To{{Operation: &securityv1beta1.Operation{Hosts: manyHosts("h", facts.MaxMatchers+1)}}},
		}}}}
		b := newTestState(t)
		b.apply(up(p))
		for got := range snapshot.AuthorizationPolicies(b.snap.Namespaces.Get("tenant")) {
			if len(got.Spec.GetRules()) != 1 || len(got.Spec.GetRules()[0].GetTo()) != 0 || !slices.Equal(got.Doubtful, []int{0}) || got.Spec.GetAction() != action {
				t.Errorf("%s became %.300v, doubtful %v", action, got.Spec, got.Doubtful)
			}
		}
	}
}

// TestSubsetsOfNamespaces: beyond the limit, DestinationRules have no subsets, first for services of
// other namespaces. The policy stays.
func TestSubsetsOfNamespaces(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	rule := func(ns, host string, subsets int) *snapshot.DestinationRule {
		out := &networkingv1alpha3.DestinationRule{Host: host, TrafficPolicy: &networkingv1alpha3.TrafficPolicy{}}
		for i := range subsets {
			out.Subsets = append(out.Subsets, &networkingv1alpha3.Subset{Name: fmt.Sprint("s", i)})
		}
		return &snapshot.DestinationRule{Meta: meta("c1", ns, "d"), Kind: snapshot.KindDestinationRule, Spec: out}
	}
	entry := func(ns string, hosts int) *snapshot.ServiceEntry {
		return &snapshot.ServiceEntry{Meta: meta("c1", ns, "e"), Hosts: manyHosts(ns+".", hosts), Ports: manyPorts(1), Resolution: snapshot.ByDestination}
	}
	b.apply(up(entry("own", 100)), up(entry("other", 2000)), up(rule("own", "*.example", 200)), up(rule("third", "third.0.example", 200)), up(entry("third", 1)))
	subsets := func(host, client string) int {
		h := b.snap.Rules.Get(host).For(snapshot.RuleClient{Namespace: client})
		if h == nil || h.Policy == nil {
			t.Fatalf("no rule of %s for %s", host, client)
		}
		return len(h.Subsets)
	}
	if n := subsets("own.0.example", "own"); n != 200 {
		t.Errorf("services of the namespace itself have %d subsets, want 200", n)
	}
	if n := subsets("third.0.example", "third"); n != 200 {
		t.Errorf("the rules of another namespace have %d subsets, want 200", n)
	}
	without := 0
	for _, host := range manyHosts("other.", 2000) {
		if subsets(host, "own") == 0 {
			without++
		}
	}
	if want := 2000 + 100 - facts.MaxSubsetClusters/200; without != want {
		t.Errorf("%d services have no subsets, want %d", without, want)
	}
	found := 0
	for _, p := range b.s.problems() {
		if p.Kind == facts.BeyondLimit && p.Object.Namespace == "own" && strings.Contains(p.Text, "has no subsets for other.") {
			found++
		}
	}
	if found != min(without, facts.MaxBeyond) {
		t.Errorf("%d problems, want %d", found, min(without, facts.MaxBeyond))
	}
}

// TestSubsetsOfOneHost: many DestinationRules of a host have no more subsets than the limit, and the
// first one that loses some is reported.
func TestSubsetsOfOneHost(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	b.apply(up(service("c1", "hello")))
	for i := range 7 {
		d := &networkingv1alpha3.DestinationRule{Host: host}
		for k := range 150 {
			d.Subsets = append(d.Subsets, &networkingv1alpha3.Subset{Name: fmt.Sprintf("s%d-%d", i, k)})
		}
		b.apply(up(&snapshot.DestinationRule{Meta: numbered("sample", i), Kind: snapshot.KindDestinationRule, Spec: d}))
	}
	if n := len(b.snap.Rules.Get(host).For(snapshot.RuleClient{}).Subsets); n != facts.MaxHostSubsets {
		t.Errorf("the host has %d subsets, want %d", n, facts.MaxHostSubsets)
	}
	if all := b.s.report.beyond; len(all) != 1 || all[0].object.Name != "o6" {
		t.Errorf("reported are %v, want the youngest", all)
	}
}

// TestVirtualServicesOfOneHost: of very many VirtualServices of a namespace for a host, the youngest
// ones are not used for it. Those of other namespaces and for gateways have no share in this.
func TestVirtualServicesOfOneHost(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	named := func(ns, gateway string, i int, hosts ...string) *snapshot.VirtualService {
		return &snapshot.VirtualService{
			Meta: numbered(ns, i), Hosts: hosts, Gateways: []string{gateway},
			HTTP: []*networkingv1alpha3.HTTPRoute{{DirectResponse: &networkingv1alpha3.HTTPDirectResponse{Status: 200}}},
		}
	}
	for i := range facts.MaxSameHost + 2 {
		b.s.Apply(up(named("tenant", snapshot.MeshGateway, i, "v.example", fmt.Sprintf("own%d.example", i))))
		b.s.Apply(up(named("gateways", "gateways/gw", i, "v.example")))
	}
	b.apply(up(named("other", snapshot.MeshGateway, 1000, "v.example")))
	if got := len(b.snap.Routes.Get("v.example").HTTP.Default); got != facts.MaxSameHost+1 {
		t.Errorf("the host has %d VirtualServices, want %d", got, facts.MaxSameHost+1)
	}
	for i := range facts.MaxSameHost + 2 {
		if b.snap.Routes.Get(fmt.Sprintf("own%d.example", i)) == nil {
			t.Errorf("own%d.example has no routes", i)
		}
	}
	var names []string
	for _, p := range b.s.report.beyond {
		names = append(names, p.object.Name)
	}
	if want := []string{"o50", "o51"}; !slices.Equal(names, want) {
		t.Errorf("reported are %v, want %v", names, want)
	}
	b.apply(down(named("tenant", snapshot.MeshGateway, 0)), down(named("tenant", snapshot.MeshGateway, 1)))
	if len(b.s.report.beyond) > 0 {
		t.Errorf("reported are %v after two are gone", b.s.report.beyond)
	}
}

// TestPortsOfOneHost: ServiceEntries of one host have no more ports together than the limit.
func TestPortsOfOneHost(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	for i := range 3 {
		ports := manyPorts(300)
		for k := range ports {
			ports[k].Number += uint32(300 * i)
			ports[k].Name += fmt.Sprint("-", i)
		}
		b.apply(up(&snapshot.ServiceEntry{Meta: numbered("sample", i), Hosts: []string{"a.example"}, Ports: ports, Resolution: snapshot.ByDNS}))
	}
	if n := len(b.snap.Services.Get("a.example").Ports); n != facts.MaxMergedPorts {
		t.Errorf("the host has %d ports, want %d", n, facts.MaxMergedPorts)
	}
	if c := b.s.report.hostConflicts; len(c) != 1 || len(c[0].Others) != 2 {
		t.Errorf("the conflicts are %v, want one with the ServiceEntries whose ports are not used", c)
	}
}
