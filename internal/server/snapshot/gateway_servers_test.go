package snapshot_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestMergeGateways: the servers of several Gateways share ports. Later servers that
// conflict with earlier ones are left out.
func TestMergeGateways(t *testing.T) {
	const (
		simple  = networkingv1alpha3.ServerTLSSettings_SIMPLE
		pass    = networkingv1alpha3.ServerTLSSettings_PASSTHROUGH
		auto    = networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH
		without = networkingv1alpha3.ServerTLSSettings_TLSmode(-1)
	)
	server := func(port uint32, protocol, bind, hosts string, mode networkingv1alpha3.ServerTLSSettings_TLSmode) *networkingv1alpha3.Server {
		s := &networkingv1alpha3.Server{
			Port: &networkingv1alpha3.Port{Number: port, Protocol: protocol, Name: strings.ToLower(protocol) + hosts}, Bind: bind, Hosts: strings.Fields(hosts),
		}
		if mode != without {
			s.Tls = &networkingv1alpha3.ServerTLSSettings{Mode: mode}
		}
		return s
	}
	for name, tc := range map[string]struct {
		first, second *networkingv1alpha3.Server
		want          string // ports with hosts, then the conflict of the second
	}{
		"two ports":                {server(80, "HTTP", "", "a", without), server(81, "HTTP", "", "a", without), "80 a http.80; 81 a http.81"},
		"target port":              {server(443, "HTTPS", "", "a", simple), server(8443, "HTTPS", "", "b", simple), "8443 a https.443.httpsa.g0.n0 b https.8443.httpsb.g1.n1"},
		"HTTP of one port":         {server(80, "HTTP", "", "a b", without), server(80, "GRPC", "", "A ./c */d", without), "80 a,b http.80 a,n1/c,d http.80"},
		"every host":               {server(80, "HTTP", "", "x */*", without), server(80, "HTTP2", "", "*", without), "80 * http.80 * http.80"},
		"TLS of one port":          {server(443, "HTTPS", "", "a", simple), server(443, "TLS", "", "b", pass), "8443 a https.443.httpsa.g0.n0 b "},
		"host twice":               {server(443, "HTTPS", "", "a", simple), server(443, "TLS", "", "b a", pass), "8443 a https.443.httpsa.g0.n0 | port 8443 has the host a already, by Gateway n0/g0"},
		"host of two namespaces":   {server(443, "HTTPS", "", "n/a", simple), server(443, "HTTPS", "", "m/a", simple), "8443 n/a https.443.httpsn/a.g0.n0 | port 8443 has the host a already, by Gateway n0/g0"},
		"services of namespaces":   {server(15443, "TLS", "", "n/*", auto), server(15443, "TLS", "", "m/*", auto), "15443 n/*  m/* "},
		"host of two addresses":    {server(443, "HTTPS", "10.0.0.1", "a", simple), server(443, "HTTPS", "", "a", simple), "8443@10.0.0.1 a https.443.httpsa.g0.n0.10.0.0.1; 8443 a https.443.httpsa.g1.n1"},
		"unspecified address":      {server(443, "HTTPS", "0.0.0.0", "a", simple), server(443, "HTTPS", "::", "b", simple), "8443 a https.443.httpsa.g0.n0 b https.443.httpsb.g1.n1"},
		"Unix sockets":             {server(0, "HTTP", "unix:///a", "a", without), server(0, "HTTP", "unix:///b", "a", without), "0@unix:///a a http.0.unix:///a; 0@unix:///b a http.0.unix:///b"},
		"HTTP and TLS":             {server(80, "HTTP", "", "a", without), server(80, "HTTPS", "", "b", simple), "80 a http.80 | port 80 has protocol HTTP, by Gateway n0/g0: HTTPS cannot share it"},
		"TLS and HTTP":             {server(443, "TLS", "", "a", pass), server(443, "HTTP", "", "b", without), "8443 a  | port 8443 has protocol TLS, by Gateway n0/g0: HTTP cannot share it"},
		"TCP and TCP":              {server(1, "TCP", "", "a", without), server(1, "MONGO", "", "b", without), "1 a  | port 1 has protocol TCP, by Gateway n0/g0: MONGO cannot share it"},
		"TLS and TCP":              {server(443, "TLS", "", "a", pass), server(443, "TCP", "", "b", without), "8443 a  | port 8443 has protocol TLS, by Gateway n0/g0: TCP cannot share it"},
		"redirect of a host twice": {server(80, "HTTP", "", "a", pass), server(80, "HTTP", "", "a", pass), "80 a http.80 | port 80 has the host a already, by Gateway n0/g0"},
		"port of the proxy":        {server(15021, "HTTP", "", "a", without), server(80, "HTTP", "", "a", without), "80 a http.80 | port 15021 is the proxy's own"},
	} {
		t.Run(name, func(t *testing.T) {
			var gateways []*snapshot.Gateway
			for i, s := range []*networkingv1alpha3.Server{tc.first, tc.second} {
				gateways = append(gateways, &snapshot.Gateway{
					Meta: snapshot.Meta{Namespace: fmt.Sprint("n", i), Name: fmt.Sprint("g", i)},
					Spec: &networkingv1alpha3.Gateway{Servers: []*networkingv1alpha3.Server{s}},
				})
			}
			ports, conflicts := snapshot.MergeGateways(gateways, func(port uint32) uint32 {
				if port == 443 {
					return 8443
				}
				return port
			})
			var texts []string
			for _, p := range ports {
				text := fmt.Sprint(p.Number)
				if p.Bind != "" {
					text += "@" + p.Bind
				}
				for _, s := range p.Servers {
					text += " " + strings.Join(s.Hosts, ",") + " " + s.Routes
				}
				texts = append(texts, text)
			}
			got := strings.Join(texts, "; ")
			for _, c := range conflicts {
				got += " | " + c.Reason
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestHTTPSRouteNamesAreUnique: two servers of HTTPS with one port name cannot share a
// route configuration.
func TestHTTPSRouteNamesAreUnique(t *testing.T) {
	server := func(host string) *networkingv1alpha3.Server {
		return &networkingv1alpha3.Server{
			Port: &networkingv1alpha3.Port{Number: 443, Protocol: "HTTPS", Name: "https"}, Hosts: []string{host},
			Tls: &networkingv1alpha3.ServerTLSSettings{Mode: networkingv1alpha3.ServerTLSSettings_SIMPLE},
		}
	}
	gw := &snapshot.Gateway{Spec: &networkingv1alpha3.Gateway{Servers: []*networkingv1alpha3.Server{server("a"), server("b")}}}
	ports, conflicts := snapshot.MergeGateways([]*snapshot.Gateway{gw}, func(port uint32) uint32 { return port })
	if len(ports) != 1 || len(ports[0].Servers) != 1 || len(conflicts) != 1 || conflicts[0].Index != 1 ||
		!slices.Equal(ports[0].Servers[0].Hosts, []string{"a"}) || conflicts[0].Reason != `port 443 has another server with the port name "https"` {
		t.Errorf("got the ports %v and the conflicts %v", ports, conflicts)
	}
}
