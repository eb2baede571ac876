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
