package registry

import (
	"fmt"
	"slices"
	"testing"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestServerConflicts: servers of Gateways that may select the same workloads conflict.
func TestServerConflicts(t *testing.T) {
	t.Parallel()
	gateway := func(name string, age time.Duration, protocol string, labels ...string) *snapshot.Gateway {
		g := &snapshot.Gateway{Meta: snapshot.Meta{Cluster: "c1", Namespace: "n", Name: name, Created: epoch.Add(-age)}, Kind: snapshot.KindGateway}
		g.Spec = &networkingv1alpha3.Gateway{Selector: map[string]string{}, Servers: []*networkingv1alpha3.Server{{
			Port: &networkingv1alpha3.Port{Number: 80, Protocol: protocol}, Hosts: []string{"*"},
		}}}
		for _, l := range labels {
			g.Spec.Selector[l] = "x"
		}
		return g
	}
	b := newTestState(t)
	web, tcp := gateway("web", 2, "HTTP", "web"), gateway("tcp", 1, "TCP", "web", "more")
	b.apply(up(web), up(tcp), up(gateway("elsewhere", 0, "TCP", "elsewhere")))
	want := fmt.Sprint(tcp.Key(), ": spec.servers[0] is not opened: port 80 has protocol HTTP, by Gateway n/web: TCP cannot share it")
	if got := b.s.report.serverConflicts; !slices.Equal(got, []string{want}) {
		t.Errorf("conflicts %q, want %q", got, want)
	}
	if c := b.apply(down(web)); len(b.s.report.serverConflicts) > 0 || !c.GatewayConfigs || c.Everywhere {
		t.Errorf("conflicts %q, changes %+v", b.s.report.serverConflicts, c)
	}
}

// TestGatewayRoutes: a Gateway has the VirtualServices that name it and are exported to the
// namespace of a proxy: first the private ones of the namespace, then the ones exported to
// it by name, then the public ones, each group oldest first.
func TestGatewayRoutes(t *testing.T) {
	t.Parallel()
	virtual := func(namespace, name string, age time.Duration, gateway string, exportTo ...string) *snapshot.VirtualService {
		return &snapshot.VirtualService{
			Meta:  snapshot.Meta{Cluster: "c1", Namespace: namespace, Name: name, Created: epoch.Add(-age)},
			Hosts: []string{name}, Gateways: []string{gateway}, ExportTo: exportTo,
			HTTP: []*networkingv1alpha3.HTTPRoute{{Redirect: &networkingv1alpha3.HTTPRedirect{Uri: "/"}}},
		}
	}
	b := newTestState(t)
	changes := b.apply(
		up(virtual("a", "young", 1, "n/web")), up(virtual("b", "old", 2, "n/web")), up(virtual("a", "private", 0, "n/web", ".")),
		up(virtual("b", "named", 1, "n/web", "a")), up(virtual("b", "other", 3, "n/other")), up(virtual("b", "mesh", 3, snapshot.MeshGateway)),
	)
	if _, ok := changes.GatewayRoutes["n/web"]; !ok || len(changes.GatewayRoutes) != 2 {
		t.Errorf("changed gateways: %v, want n/web and n/other", changes.GatewayRoutes)
	}
	for namespace, want := range map[string]string{"a": "[private named old young]", "elsewhere": "[old young]"} {
		var got []string
		for _, v := range b.snap.GatewayRoutes.Get("n/web").For(namespace) {
			got = append(got, v.Name)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("proxies in %s use %v, want %s", namespace, got, want)
		}
	}
	problems := func() (out []string) {
		for _, p := range b.s.report.routes {
			out = append(out, p.String())
		}
		return out
	}
	if want := "VirtualService b/other: Gateway n/other does not exist"; !slices.Contains(problems(), want) {
		t.Errorf("problems %q, want %q", problems(), want)
	}
	b.apply(up(&snapshot.Gateway{Meta: snapshot.Meta{Cluster: "c1", Namespace: "n", Name: "other"}, Kind: snapshot.KindGateway, Spec: &networkingv1alpha3.Gateway{}}))
	if slices.ContainsFunc(problems(), func(p string) bool { return p == "VirtualService b/other: Gateway n/other does not exist" }) {
		t.Errorf("problems %q after the Gateway was added", problems())
	}
}
