package xdsgen_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// unitsOfViews holds the units of views by view and id.
type unitsOfViews map[units.View]map[units.Key]units.Unit

// TestTouchedFindsEveryChange: after random changes of a mesh, views that were updated
// only by Touched, and only for the kinds that they read, equal newly listed views. A
// proxy keeps its views unless facts changed that AssignReads and Concerned name.
func TestTouchedFindsEveryChange(t *testing.T) {
	type publication struct {
		s *snapshot.Snapshot
		c *snapshot.Changes
	}
	published := make(chan publication, 1)
	clusters := []mesh.ClusterID{"c1", "c2"}
	r := registry.New(registry.Config{
		Local: "c1", Clusters: clusters, SystemNamespace: mesh.DefaultSystemNamespace,
		Publish: func(s *snapshot.Snapshot, c *snapshot.Changes) { published <- publication{s, c} },
		Log:     slog.New(slog.DiscardHandler), Now: time.Now,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for _, c := range clusters {
		r.Synced(c)
	}
	p := <-published

	nodes := testNodes()
	names := xdswire.NewNameSets().Of(secretNames())
	assigned := make([]units.Assignment, len(nodes))
	held := make(unitsOfViews)
	refresh := func() {
		for i, n := range nodes {
			assigned[i] = xdsgen.Assign(p.s, n)
			for _, v := range viewsOf(assigned[i]) {
				if held[v] == nil {
					held[v] = list(p.s, v)
				}
			}
		}
		for _, v := range secretViews(p.s, names) {
			if held[v] == nil {
				held[v] = list(p.s, v)
			}
		}
	}
	refresh()
	rnd := rand.New(rand.NewPCG(7, 7))
	steps := 600
	if testing.Short() {
		steps = 200
	}
	for step := range steps {
		var batch []snapshot.Event
		for range 1 + rnd.IntN(3) {
			batch = append(batch, randomChange(rnd), randomSecret(rnd))
		}
		// The change always has an effect, so that there is a snapshot.
		batch = append(batch, put(&snapshot.Pod{Meta: metaOf("c1", "tick", fmt.Sprint(step))}))
		r.Apply(batch)
		p = <-published
		for v, have := range held {
			if p.c.Everywhere {
				held[v] = list(p.s, v)
				continue
			}
			if v.Keys().Reads()&p.c.Kinds() != 0 {
				for key := range v.Keys().Touched(p.s, p.c) {
					if have[key] = v.Unit(p.s, key); have[key] == nil {
						delete(have, key)
					}
				}
			}
			if want := list(p.s, v); !equalUnits(want, have) {
				t.Fatalf("step %d, %s view %+v: touched units differ from all units\nbatch: %v\nhave %v\nwant %v", step, xdswire.ShortType(v.Type()), v, batch, ids(have), ids(want))
			}
		}
		for i, n := range nodes {
			pod, namespace := xdsgen.AssignReads(n)
			_, podChanged := p.c.Pods[pod]
			_, namespaceChanged := p.c.Namespaces[namespace]
			others := xdsgen.Concerned(p.s, p.c)
			if podChanged || namespaceChanged || others != nil && others(n) {
				continue
			}
			if fmt.Sprint(xdsgen.Assign(p.s, n)) != fmt.Sprint(assigned[i]) {
				t.Fatalf("step %d: %s has other views, but nothing changed that AssignReads or Concerned names\nbatch: %v", step, n.ID, batch)
			}
		}
		refresh()
	}
}

func list(s *snapshot.Snapshot, v units.View) map[units.Key]units.Unit {
	return maps.Collect(units.Units(v, s))
}

func equalUnits(a, b map[units.Key]units.Unit) bool {
	if len(a) != len(b) {
		return false
	}
	for id, u := range a {
		if b[id] != u {
			return false
		}
	}
	return true
}

func ids(m map[units.Key]units.Unit) []string {
	var out []string
	for id, u := range m {
		out = append(out, fmt.Sprintf("%v=%T", id, u))
	}
	return out
}

func viewsOf(a units.Assignment) []units.View {
	var out []units.View
	for _, v := range a {
		for _, one := range v.List() {
			if one != nil {
				out = append(out, one)
			}
		}
	}
	return out
}

func testNodes() []proxy.Node {
	node := func(typ mesh.NodeType, ns string, c mesh.ClusterID, captured bool) proxy.Node {
		ip := netip.MustParseAddr("10.0.0.1")
		return proxy.Node{
			ID:      mesh.NodeID{Type: typ, IP: ip, Name: "p0", Namespace: ns, Domain: "x"},
			Cluster: c, Namespace: ns, Labels: map[string]string{"app": "a", "istio": "gw"}, IPs: []netip.Addr{ip}, Captured: captured,
		}
	}
	gw := node(mesh.Router, "istio-system", "c1", true)
	gw.View = []mesh.NetworkID{"n0"}
	vm := node(mesh.Sidecar, "ns0", "c1", true)
	vm.WorkloadEntry = "vm"
	return []proxy.Node{
		node(mesh.Sidecar, "ns0", "c1", true), node(mesh.Sidecar, "ns1", "c1", true), node(mesh.Sidecar, "ns0", "c2", true),
		node(mesh.Sidecar, "ns1", "c1", false), node(mesh.Sidecar, "elsewhere", "c1", true), gw, vm,
	}
}

func put(o snapshot.Object) snapshot.Event { return snapshot.Event{Key: o.Key(), Object: o} }

func metaOf(c mesh.ClusterID, ns, n string) snapshot.Meta {
	return snapshot.Meta{Cluster: c, Namespace: ns, Name: n, Labels: map[string]string{}}
}

func randomChange(r *rand.Rand) snapshot.Event {
	c := mesh.ClusterID(fmt.Sprintf("c%d", 1+r.IntN(2)))
	ns := fmt.Sprintf("ns%d", r.IntN(2))
	if r.IntN(6) == 0 {
		ns = "istio-system"
	}
	svc := fmt.Sprintf("svc%d", r.IntN(4))
	var o snapshot.Object
	switch r.IntN(10) {
	case 9:
		w := &snapshot.WorkloadEntry{Weight: uint32(r.IntN(3)), HealthChecked: r.IntN(2) == 0, Health: snapshot.Condition(r.IntN(3))}
		w.Meta, w.External, w.IPs = metaOf(c, ns, "vm"), true, []netip.Addr{netip.MustParseAddr("192.0.2.5")}
		w.Labels = map[string]string{"app": []string{"a", "b"}[r.IntN(2)], mesh.LabelTLSMode: "istio"}
		w.Ports = []snapshot.PodPort{{Name: "http", Number: uint32(8080 + r.IntN(2))}}
		o = w
	case 0, 1:
		s := &snapshot.Service{Meta: metaOf(c, ns, svc), Selector: map[string]string{"app": "a"}, Headless: r.IntN(4) == 0}
		s.VIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, c[1], byte(r.IntN(4))})}
		for _, p := range []mesh.Protocol{mesh.HTTP, mesh.TCP, mesh.Auto}[:1+r.IntN(3)] {
			s.Ports = append(s.Ports, snapshot.ServicePort{Name: string(p), Number: uint32(80 + r.IntN(3)), Protocol: p})
		}
		if len(s.Ports) > 1 && s.Ports[0].Number == s.Ports[1].Number {
			s.Ports = s.Ports[:1]
		}
		if r.IntN(4) == 0 {
			s.Selector = nil
		}
		if r.IntN(5) == 0 {
			s.ExportTo = []string{"."}
		}
		if r.IntN(8) == 0 {
			s.Labels[mesh.LabelNetwork] = "n1"
			s.External = []string{"192.0.2.1"}
			s.Ports = append(s.Ports, snapshot.ServicePort{Name: "tls", Number: 15443, Protocol: mesh.TLS})
		}
		o = s
	case 2:
		pod := &snapshot.Pod{Meta: metaOf(c, ns, "p0"), IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, ServiceAccount: fmt.Sprint("sa", r.IntN(2))}
		pod.Labels = map[string]string{"app": []string{"a", "b"}[r.IntN(2)], mesh.LabelTLSMode: "istio"}
		o = pod
	case 3, 4:
		o = &snapshot.EndpointSlice{
			Meta: metaOf(c, ns, svc+"-1"), Service: svc, Ports: []snapshot.SlicePort{{Name: "http", Number: 80}, {Name: "tcp", Number: 81}},
			Endpoints: []snapshot.SliceEndpoint{{
				Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Pod: "p0", Ready: r.IntN(2) == 0, Hostname: []string{"", "h"}[r.IntN(2)],
			}},
		}
	case 5:
		p := &snapshot.PeerAuthentication{Meta: metaOf("c1", ns, "p"), Kind: snapshot.KindPeerAuthentication}
		p.Spec = &securityv1beta1.PeerAuthentication{Mtls: &securityv1beta1.PeerAuthentication_MutualTLS{
			Mode: securityv1beta1.PeerAuthentication_MutualTLS_Mode(r.IntN(4)),
		}}
		o = p
	case 6:
		f := &snapshot.EnvoyFilter{Meta: metaOf("c1", ns, fmt.Sprint("f", r.IntN(2))), Priority: int32(r.IntN(2))}
		if r.IntN(2) == 0 {
			f.Selector = map[string]string{"app": []string{"a", "b"}[r.IntN(2)]}
		}
		f.Extensions = []snapshot.Extension{{Name: "e", Body: string([]byte{byte(r.IntN(2))})}}
		f.Patches = []*snapshot.Patch{{Of: f.Key(), Spec: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch{
			ApplyTo: networkingv1alpha3.EnvoyFilter_HTTP_FILTER,
			Match: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch{
				Context: networkingv1alpha3.EnvoyFilter_PatchContext(r.IntN(4)),
				ObjectTypes: &networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectMatch_Listener{
					Listener: &networkingv1alpha3.EnvoyFilter_ListenerMatch{PortNumber: uint32(r.IntN(2) * 80)},
				},
			},
			Patch: &networkingv1alpha3.EnvoyFilter_Patch{Operation: networkingv1alpha3.EnvoyFilter_Patch_INSERT_FIRST},
		}, Value: &hcmv3.HttpFilter{Name: "f"}}}
		o = f
	case 7:
		sc := &snapshot.Sidecar{Meta: metaOf("c1", ns, "s"), Kind: snapshot.KindSidecar, Spec: &networkingv1alpha3.Sidecar{}}
		if r.IntN(2) == 0 {
			sc.Spec.Egress = []*networkingv1alpha3.IstioEgressListener{
				{Port: &networkingv1alpha3.SidecarPort{Number: 15080, Protocol: "HTTP_PROXY"}, Hosts: []string{"./*"}},
				{Hosts: []string{"ns1/*"}},
			}
		}
		o = sc
	default:
		g := &snapshot.Gateway{Meta: metaOf("c1", ns, "g"), Kind: snapshot.KindGateway, Spec: &networkingv1alpha3.Gateway{
			Selector: map[string]string{"istio": "gw"},
			Servers: []*networkingv1alpha3.Server{{
				Port: &networkingv1alpha3.Port{Number: uint32(15443 + r.IntN(2))}, Hosts: []string{"*.local"},
				Tls: &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH},
			}},
		}}
		o = g
	}
	if r.IntN(4) == 0 {
		return snapshot.Event{Key: o.Key()}
	}
	return put(o)
}
