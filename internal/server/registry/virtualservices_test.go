package registry

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// virtualService returns a VirtualService that routes requests to its name.
func virtualService(ns, n string, age time.Duration, exportTo string, hosts ...string) *snapshot.VirtualService {
	v := &snapshot.VirtualService{
		Meta: meta("c1", ns, n), Hosts: hosts, Gateways: []string{snapshot.MeshGateway}, ExportTo: strings.Fields(exportTo),
		HTTP: []*networkingv1alpha3.HTTPRoute{routeTo(n + ".test")},
	}
	v.Created = epoch.Add(-age)
	return v
}

func routeTo(host string) *networkingv1alpha3.HTTPRoute {
	return &networkingv1alpha3.HTTPRoute{Route: []*networkingv1alpha3.HTTPRouteDestination{{Destination: &networkingv1alpha3.Destination{Host: host}}}}
}

// routed returns the names of the VirtualServices of a host for clients in a namespace.
func routed(s *snapshot.Snapshot, host, client string) string {
	h := s.Routes.Get(host)
	if h == nil {
		return ""
	}
	var out []string
	for _, v := range h.HTTP.For(client) {
		out = append(out, v.Name)
	}
	return strings.Join(out, " ")
}

// TestVirtualServicesOfClient checks which VirtualServices a host has for a client, and their
// order.
func TestVirtualServicesOfClient(t *testing.T) {
	t.Parallel()
	const host = "web.sample.svc.cluster.local"
	all := func(of ...*snapshot.VirtualService) []*snapshot.VirtualService { return of }
	for name, c := range map[string]struct {
		services  []*snapshot.VirtualService
		byDefault string
		want      map[string]string // names by the namespace of a client
	}{
		"oldest first":        {all(virtualService("sample", "b", 0, "", host), virtualService("other", "a", time.Hour, "", host)), "", map[string]string{"sample": "a b", "third": "a b"}},
		"private first":       {all(virtualService("sample", "b", 0, ".", host), virtualService("other", "a", time.Hour, "", host)), "", map[string]string{"sample": "b a", "third": "a"}},
		"named before public": {all(virtualService("sample", "b", 0, "third", host), virtualService("other", "a", time.Hour, "*", host)), "", map[string]string{"sample": "a", "third": "b a"}},
		"exact host":          {all(virtualService("sample", "b", 0, "", host), virtualService("sample", "a", time.Hour, "", "*.sample.svc.cluster.local")), "", map[string]string{"other": "b"}},
		"longest wildcard":    {all(virtualService("sample", "b", 0, "", "*.sample.svc.cluster.local"), virtualService("sample", "a", time.Hour, "", "*.cluster.local")), "", map[string]string{"other": "b"}},
		"private exact host":  {all(virtualService("other", "b", 0, ".", host), virtualService("sample", "a", time.Hour, "", "*.cluster.local")), "", map[string]string{"other": "b", "third": "a"}},
		"private by default":  {all(virtualService("sample", "a", 0, "", host)), ".", map[string]string{"sample": "a", "other": ""}},
		"only a gateway": {all(func() *snapshot.VirtualService {
			v := virtualService("sample", "a", 0, "", host)
			v.Gateways = []string{"sample/gw"}
			return v
		}()), "", map[string]string{"sample": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTestState(t)
			events := []snapshot.Event{up(service("c1", "web"))}
			if c.byDefault != "" {
				events = append(events, up(&snapshot.MeshSettings{Meta: meta("c1", "istio-system", "istio"), Mesh: &meshv1alpha1.MeshConfig{DefaultVirtualServiceExportTo: []string{c.byDefault}}}))
			}
			for _, v := range c.services {
				events = append(events, up(v))
			}
			b.apply(events...)
			for client, want := range c.want {
				if got := routed(b.snap, host, client); got != want {
					t.Errorf("a client in %s has %q, want %q", client, got, want)
				}
			}
		})
	}
}

// TestHostsWithoutService: a host of a VirtualService without a service has routes at port 80
// and at the ports of the other hosts' services.
func TestHostsWithoutService(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	web := service("c1", "web")
	web.Ports = []snapshot.ServicePort{{Name: "http", Number: 9080, Protocol: mesh.HTTP}, {Name: "tcp", Number: 9090, Protocol: mesh.TCP}}
	host := mesh.ServiceHost("web", web.Namespace, mesh.DefaultDomain)
	b.apply(up(web), up(virtualService("sample", "a", 0, "", host, "a.test")))
	for name, want := range map[string]string{"a.test": "80 9080", host: "80 9080 9090"} {
		h := b.snap.Routes.Get(name)
		if h == nil || fmt.Sprint(h.Ports) != "["+want+"]" {
			t.Errorf("%s has routes %+v, want those at the ports %s", name, h, want)
		}
	}
	if h := b.snap.Routes.Get(host); h.Unserved == nil || h.Unserved.Port(9080) != nil || h.Unserved.Port(80) == nil {
		t.Errorf("without a service is %+v", h.Unserved)
	}
}

// TestDelegates: routes of delegates replace the delegating ones, and problems are reported.
func TestDelegates(t *testing.T) {
	t.Parallel()
	prefix := func(p string) []*networkingv1alpha3.HTTPMatchRequest {
		return []*networkingv1alpha3.HTTPMatchRequest{{Uri: &networkingv1alpha3.StringMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: p}}}}
	}
	root := virtualService("sample", "root", 0, "", "a.test")
	root.HTTP = nil
	for _, to := range []string{"part", "missing", "whole", "hidden"} {
		root.HTTP = append(root.HTTP, &networkingv1alpha3.HTTPRoute{Name: "r", Match: prefix("/a"), Delegate: &networkingv1alpha3.Delegate{Name: to, Namespace: "other"}})
	}
	part := virtualService("other", "part", 0, "")
	within, without := routeTo("one.test"), routeTo("two.test")
	within.Name, within.Match, without.Match = "p", prefix("/a/b"), prefix("/c")
	part.HTTP = []*networkingv1alpha3.HTTPRoute{within, without}
	b := newTestState(t)
	b.apply(up(root), up(part), up(virtualService("other", "whole", 0, "", "b.test")), up(virtualService("other", "hidden", 0, ".")))
	v := b.snap.Routes.Get("a.test").HTTP.Default[0]
	if len(v.HTTP) != 1 || v.HTTP[0].Name != "r-p" || v.HTTP[0].Match[0].Uri.GetPrefix() != "/a/b" {
		t.Errorf("the routes are %v", v.HTTP)
	}
	var got []string
	for _, p := range b.s.report.routes {
		got = append(got, p.String())
	}
	want := []string{
		"VirtualService other/whole: destination whole.test is no service: requests to it fail",
		"VirtualService sample/root: a route of delegate other/part matches requests that the delegating route does not",
		"VirtualService sample/root: delegate other/hidden is not exported to namespace sample",
		"VirtualService sample/root: delegate other/missing does not exist",
		"VirtualService sample/root: delegate other/whole has hosts, which only the delegating VirtualService may have",
		"VirtualService sample/root: destination one.test is no service: requests to it fail",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the problems are %s", strings.Join(got, "\n"))
	}
	changed := virtualService("other", "part", 0, "")
	changed.HTTP = []*networkingv1alpha3.HTTPRoute{routeTo("three.test")}
	b.apply(up(changed))
	if v := b.snap.Routes.Get("a.test").HTTP.Default[0]; v.HTTP[0].Name != "r" || v.HTTP[0].Route[0].Destination.Host != "three.test" {
		t.Errorf("after a change of the delegate the routes are %v", v.HTTP)
	}
}
