package server

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/kube"
)

// nextTable returns the first address of each name in the next DNS table. It skips
// responses of other types.
func (p *testProxy) nextTable(t *testing.T) map[string]string {
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
			subscribed := func(name string) *testProxy {
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

// TestAddressesInStatus: the control plane writes the addresses that it allocates to the
// status of ServiceEntries, with the rights of deploy/rbac.yaml. It changes nothing else
// there, and uses the addresses that other writers give.
func TestAddressesInStatus(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	rights, err := os.ReadFile("../../deploy/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c := kube.Start(t)
	const entry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: entry, namespace: apps}
spec: {hosts: [a.example.com, b.example.com], resolution: DNS, ports: [{name: tls, number: 443, protocol: TLS}]}
`
	definition := strings.NewReplacer("WorkloadEntry", "ServiceEntry", "workloadentries", "serviceentries", "workloadentry", "serviceentry").Replace(workloadEntries)
	c.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: istio-system}\n---\n"+string(rights)+"---\n"+definition+entry)
	c.Kubectl(t, "", "-n", "apps", "patch", "serviceentry", "entry", "--subresource=status", "--type=merge", "-p",
		`{"status":{"conditions":[{"type":"Other","status":"True"}],"addresses":[{"value":"240.240.7.7","host":"b.example.com"}]}}`)
	access := rest.AnonymousClientConfig(c.Config())
	access.BearerToken = strings.TrimSpace(c.Kubectl(t, "", "-n", "istio-system", "create", "token", "meshctl"))
	serve := func() *Server {
		return start(t, func(cfg *Config) { cfg.ConfigDir, cfg.KubeAccess = "", access })
	}
	s := serve()
	allocated := func(s *Server, host string) string {
		if svc := s.registry.Current().Services.Get(host); svc != nil {
			return fmt.Sprint(svc.Allocated)
		}
		return "no service"
	}
	status := func() string {
		return c.Kubectl(t, "", "-n", "apps", "get", "serviceentry", "entry", "-o",
			`jsonpath={range .status.conditions[*]}{.type} {end}{range .status.addresses[*]}{.host}={.value} {end}`)
	}
	own := s.registry.Current().Services.Get("a.example.com").Allocated
	want := fmt.Sprintf("Other b.example.com=240.240.7.7 a.example.com=%s a.example.com=%s ", own[0], own[1])
	waitFor(t, "addresses in the status", func() bool { return status() == want })
	waitFor(t, "the written status", func() bool { return len(s.registry.UnwrittenAddresses()) == 0 })
	if a, b := allocated(s, "a.example.com"), allocated(s, "b.example.com"); a != fmt.Sprint(own) || b != "[240.240.7.7]" {
		t.Errorf("the hosts have %s and %s", a, b)
	}

	c.Kubectl(t, "", "-n", "apps", "patch", "serviceentry", "entry", "--subresource=status", "--type=merge", "-p",
		`{"status":{"addresses":[{"value":"240.240.9.9","host":"a.example.com"},{"value":"240.240.7.7","host":"b.example.com"}]}}`)
	waitFor(t, "the address of another writer", func() bool { return allocated(s, "a.example.com") == "[240.240.9.9]" })
	if got := allocated(serve(), "a.example.com"); got != "[240.240.9.9]" {
		t.Errorf("after a restart the host has %s", got)
	}
	if got := metrics(t, s)[`meshctl_address_writes_total{cluster="cluster1",result="updated"}`]; got != 1 {
		t.Errorf("%v writes, want 1", got)
	}
	if problem := s.apis.addresses.Problem(); problem != "" {
		t.Error(problem)
	}
}
