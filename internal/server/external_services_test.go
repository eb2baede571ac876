package server

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// nextTable returns the first address of each name in the next DNS table. It skips
// responses of other types.
func (p *proxy) nextTable(t *testing.T) map[string]string {
	t.Helper()
	r := p.next(t)
	for r.GetTypeUrl() != xdswire.NameTableType {
		r = p.next(t)
	}
	out := make(map[string]string)
	for _, entry := range fieldsOf(t, r.GetResources()[0].GetResource().GetValue()) {
		of := fieldsOf(t, entry)
		host := string(of[0])
		if _, twice := out[host]; twice {
			t.Errorf("the table has %s twice", host)
		}
		out[host] = string(fieldsOf(t, of[1])[0])
	}
	return out
}

// fieldsOf returns the fields of a message, all of which are strings or messages.
func fieldsOf(t *testing.T, message []byte) [][]byte {
	t.Helper()
	var out [][]byte
	for len(message) > 0 {
		_, _, n := protowire.ConsumeTag(message)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		value, m := protowire.ConsumeBytes(message[n:])
		if m < 0 {
			t.Fatal(protowire.ParseError(m))
		}
		out, message = append(out, value), message[n+m:]
	}
	return out
}

// TestContendedNames: a name of a headless service's pod and a host of a ServiceEntry may be
// the same. The DNS table has the name once, and the other address after one of them is
// gone, like the table of a new proxy.
func TestContendedNames(t *testing.T) {
	for service, entryFirst := range map[string]bool{"web": true, "db": false} {
		t.Run(service, func(t *testing.T) {
			host := "pod-0." + service + ".shop.svc.cluster.local"
			pods := func(first, second string) string {
				return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: pods, namespace: shop, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [%s], hostname: pod-0}, {addresses: [%s], hostname: pod-1}]
`, service, first, second)
			}
			entry := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: entry, namespace: shop}
spec: {hosts: [%s], addresses: [10.20.0.1], resolution: STATIC, ports: [{name: tcp, number: 7000}]}
`, host)
			var dir string
			s := start(t, func(c *Config) {
				dir = c.ConfigDir
				write(t, dir, "service.yaml", fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
`, service))
				write(t, dir, "pods.yaml", pods("10.1.0.1", "10.1.0.2"))
			})
			subscribed := func(name string) *proxy {
				p := connect(t, s, name)
				p.next(t)
				p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.NameTableType})
				return p
			}
			p := subscribed("p")
			check := func(when string, first, second string) {
				t.Helper()
				got := p.nextTable(t)
				want := map[string]string{host: first, "pod-1." + service + ".shop.svc.cluster.local": second}
				for name, ip := range want {
					if got[name] != ip {
						t.Errorf("%s: %s has %s, want %s", when, name, got[name], ip)
					}
				}
				if fresh := subscribed("fresh " + when).nextTable(t); !maps.Equal(got, fresh) {
					t.Errorf("%s: the table is %v, a new proxy has %v", when, got, fresh)
				}
			}
			either := func(entry, pod string) string {
				if entryFirst {
					return entry
				}
				return pod
			}
			check("pods", "10.1.0.1", "10.1.0.2")
			if write(t, dir, "entry.yaml", entry); entryFirst {
				check("an entry", "10.20.0.1", "10.1.0.2")
			}
			write(t, dir, "pods.yaml", pods("10.1.0.3", "10.1.0.4"))
			check("other pods", either("10.20.0.1", "10.1.0.3"), "10.1.0.4")
			if err := os.Remove(filepath.Join(dir, "entry.yaml")); err != nil {
				t.Fatal(err)
			}
			if entryFirst {
				check("no entry", "10.1.0.3", "10.1.0.4")
			}
		})
	}
}
