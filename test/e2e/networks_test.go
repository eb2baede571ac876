package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/demo"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
)

// TestNetworks changes how the second network is reached while real Envoys call
// helloworld, which runs in both networks.
func TestNetworks(t *testing.T) {
	m := startMesh(t, false)
	t.Run("no usable gateway", func(t *testing.T) { noUsableGateway(t, m) })
	t.Run("address of a local Service", func(t *testing.T) { addressOfLocalService(t, m) })
	t.Run("private service", func(t *testing.T) { privateService(t, m) })
	t.Run("gateways of two IP versions", func(t *testing.T) { gatewaysOfTwoVersions(t, m) })
	t.Run("subsets", func(t *testing.T) { subsets(t, m) })
	t.Run("everything sent is accepted", func(t *testing.T) { everythingAccepted(t, m) })
	t.Run("target port of a gateway", func(t *testing.T) { targetPortOfGateway(t, m) })
	t.Run("gateway of a demoted cluster and of another", func(t *testing.T) { gatewayOfDemotedCluster(t, m) })
}

const (
	controlPlane1 = "127.1.0.2:8080"
	local1        = "127.1.0.11:5000"
	gateway2      = "127.2.0.3:15443"
)

// noUsableGateway takes the only gateway of network2 away. The client of the
// other network is left with the endpoint of its own, and gets it back.
func noUsableGateway(t *testing.T, m *demo.Mesh) {
	file := filepath.Join(m.Dir("cluster2"), "3-eastwest-gateway.yaml")
	client := m.Clients()[0]
	for name, change := range map[string]func(string) string{
		"load balancer without an address": func(s string) string { return changed(t, s, "ip: 127.2.0.3", `ip: ""`) },
		"host name that does not resolve":  func(s string) string { return changed(t, s, "ip: 127.2.0.3", "hostname: gone.invalid") },
		"deleted Service":                  func(s string) string { return withoutService(t, s) },
	} {
		t.Run(name, func(t *testing.T) {
			restore := edit(t, file, change)
			awaitHosts(t, client, map[string]host{local1: {Weight: 1}})
			if got := versionsOf(t, client, 50); got["v1"] != 50 {
				t.Errorf("answers %v, want 50 of v1", got)
			}
			out, err := exec.Command(meshctl, "explain", "endpoints", "helloworld.sample", "--from", "client.sample", "--server", controlPlane1).CombinedOutput()
			if want := "no: it is in another network, which has no usable gateway: "; err != nil || !strings.Contains(string(out), want) {
				t.Errorf("meshctl explain: %v, want %q in\n%s", err, want, out)
			}
			const unreachable = "network network2: proxies in other networks get none of its endpoints: "
			if page := adminGet(t, controlPlane1, "/ready?verbose"); !strings.Contains(page, unreachable) {
				t.Errorf("/ready?verbose lacks %q:\n%s", unreachable, page)
			}
			if out, err = exec.Command(meshctl, "remote-clusters", "--server", controlPlane1).CombinedOutput(); err == nil || !strings.Contains(string(out), unreachable) {
				t.Errorf("meshctl remote-clusters: %v, want %q in\n%s", err, unreachable, out)
			}
			restore()
			awaitHosts(t, client, map[string]host{local1: {Weight: 1}, gateway2: {Weight: 1}})
			if got := versionsOf(t, client, 50); got["v1"] == 0 || got["v2"] == 0 {
				t.Errorf("answers %v, want both versions", got)
			}
		})
	}
	log, err := os.ReadFile(m.ControlPlaneLog("cluster1"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), "network has no usable gateway"); n != 3 {
		t.Errorf("%d warnings, want one for each cause", n)
	}
}

// addressOfLocalService lets another cluster have a Service, an older one, with the
// address of helloworld. Calls to the address still reach helloworld.
func addressOfLocalService(t *testing.T, m *demo.Mesh) {
	const older = `
apiVersion: v1
kind: Service
metadata: {name: another, namespace: sample, creationTimestamp: "2020-01-01T00:00:00Z"}
spec:
  clusterIP: 10.96.0.7
  ports: [{name: http, port: 5000}]
`
	file := filepath.Join(m.Dir("cluster2"), "another.yaml")
	replace(t, file, older)
	t.Cleanup(func() {
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	})
	explain := func() string {
		out, _ := exec.Command(meshctl, "explain", "endpoints", "another.sample", "--from", "client.sample", "--server", controlPlane1).CombinedOutput()
		return string(out)
	}
	eventually(t, "the control plane has the other Service", func() error {
		if out := explain(); !strings.Contains(out, "reaches no endpoint of another.sample") {
			return errors.New(out)
		}
		return nil
	})
	edit(t, filepath.Join(m.Dir("cluster1"), "4-helloworld.yaml"), func(s string) string {
		s = changed(t, s, "kind: Service\nmetadata:\n", "kind: Service\nmetadata:\n  creationTimestamp: \"2026-01-01T00:00:00Z\"\n")
		return changed(t, s, "  ports:\n", "  clusterIP: 10.96.0.7\n  ports:\n")
	})
	client := dial.ProxiedHTTPClient(deadline, "127.1.0.12:15080", 1)
	defer client.CloseIdleConnections()
	eventually(t, "an answer at the address", func() error {
		resp, err := client.Get("http://10.96.0.7:5000/hello")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && (resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "helloworld")) {
			err = fmt.Errorf("%s, %q", resp.Status, body)
		}
		return err
	})
	const conflict = "address 10.96.0.7: proxies of [cluster1] use it for helloworld.sample.svc.cluster.local, not for another.sample.svc.cluster.local"
	if page := adminGet(t, controlPlane1, "/ready?verbose"); !strings.Contains(page, conflict) {
		t.Errorf("/ready?verbose lacks %q:\n%s", conflict, page)
	}
	if out, want := explain(), "Calls to its address 10.96.0.7 reach helloworld.sample.svc.cluster.local"; !strings.Contains(out, want) {
		t.Errorf("meshctl explain lacks %q:\n%s", want, out)
	}
}

// privateService exports helloworld first to its own namespace only, which the client shares,
// then to the namespace of the gateways, too. Only in the second case do clients call through
// the gateways, and gateways pass the calls on.
func privateService(t *testing.T, m *demo.Mesh) {
	client := m.Clients()[0]
	for _, tc := range []struct {
		exportTo string
		want     map[string]host
		versions []string
	}{
		{".", map[string]host{local1: {Weight: 1}}, []string{"v1"}},
		{".,istio-system", map[string]host{local1: {Weight: 1}, gateway2: {Weight: 1}}, []string{"v1", "v2"}},
	} {
		t.Run(tc.exportTo, func(t *testing.T) {
			for _, cluster := range []string{"cluster1", "cluster2"} {
				edit(t, filepath.Join(m.Dir(mesh.ClusterID(cluster)), "4-helloworld.yaml"), func(s string) string {
					return changed(t, s, "kind: Service\nmetadata:\n", "kind: Service\nmetadata:\n  annotations: {networking.istio.io/exportTo: \""+tc.exportTo+"\"}\n")
				})
			}
			const chain = "outbound_.5000_._.helloworld.sample.svc.cluster.local"
			passes := len(tc.versions) == 2
			eventually(t, "the gateway's filter chain", func() error {
				if dump := adminGet(t, "127.2.0.3:15000", "/config_dump?resource=dynamic_listeners"); strings.Contains(dump, chain) != passes {
					return fmt.Errorf("it is there: %v", !passes)
				}
				return nil
			})
			awaitHosts(t, client, tc.want)
			if got := slices.Sorted(maps.Keys(versionsOf(t, client, 50))); !slices.Equal(got, tc.versions) {
				t.Errorf("answers of %q, want %q", got, tc.versions)
			}
		})
	}
	awaitHosts(t, client, map[string]host{local1: {Weight: 1}, gateway2: {Weight: 1}})
}

// gatewaysOfTwoVersions gives network2 a second IPv4 address and one of IPv6, which
// the client cannot use. Half of the answers still come from there.
func gatewaysOfTwoVersions(t *testing.T, m *demo.Mesh) {
	const second = "127.2.0.4:15443"
	forward(t, second, gateway2)
	client := m.Clients()[0]
	edit(t, filepath.Join(m.Dir("cluster2"), "3-eastwest-gateway.yaml"), func(s string) string {
		return regexp.MustCompile(`(?m)^( *)- ip: 127\.2\.0\.3$`).ReplaceAllString(s, "$0\n$1- ip: 127.2.0.4\n$1- ip: 2001:db8::1")
	})
	awaitHosts(t, client, map[string]host{local1: {Weight: 2}, gateway2: {Weight: 1}, second: {Weight: 1}})
	halfEach(t, client)
}

// subsets routes the calls of the client to one version after the other. The calls to the
// second one pass through the gateway, by the server name of the subset.
func subsets(t *testing.T, m *demo.Mesh) {
	create := func(cluster mesh.ClusterID, text string) {
		file := filepath.Join(m.Dir(cluster), "subsets.yaml")
		replace(t, file, text)
		t.Cleanup(func() { _ = os.Remove(file) })
	}
	const rule = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: helloworld, namespace: sample}
spec: {host: helloworld, subsets: [{name: one, labels: {version: v1}}, {name: two, labels: {version: v2}}]}
`
	create("cluster1", rule)
	create("cluster2", rule)
	eventually(t, "the gateway's filter chain of the subset", func() error {
		const chain = "outbound_.5000_.two_.helloworld.sample.svc.cluster.local"
		if dump := adminGet(t, "127.2.0.3:15000", "/config_dump?resource=dynamic_listeners"); !strings.Contains(dump, chain) {
			return errors.New("it is not there")
		}
		return nil
	})
	client := m.Clients()[0]
	eventually(t, "the client's endpoints of the subsets", func() error {
		for subset, address := range map[string]string{"one": local1, "two": gateway2} {
			want := "outbound|5000|" + subset + "|helloworld.sample.svc.cluster.local::" + address + "::"
			if page := adminGet(t, client.Admin(), "/clusters"); !strings.Contains(page, want) {
				return fmt.Errorf("no %s", want)
			}
		}
		return nil
	})
	for subset, version := range map[string]string{"one": "v1", "two": "v2"} {
		create("cluster1", rule+fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: helloworld, namespace: sample}
spec: {hosts: [helloworld], http: [{route: [{destination: {host: helloworld, subset: %s}}]}]}
`, subset))
		eventually(t, "answers of subset "+subset, func() error {
			if got := versionsOf(t, client, 50); got[version] != 50 {
				return fmt.Errorf("answers %v, want all of %s", got, version)
			}
			return nil
		})
	}
}

// targetPortOfGateway has the Service of the gateway lead from its port 15443 to port
// 8443 of the pod. The gateway listens there.
func targetPortOfGateway(t *testing.T, m *demo.Mesh) {
	const target = "127.2.0.3:8443"
	t.Cleanup(func() { awaitListening(t, gateway2) })
	edit(t, filepath.Join(m.Dir("cluster2"), "3-eastwest-gateway.yaml"), func(s string) string {
		return changed(t, s, "targetPort: 15443", "targetPort: 8443")
	})
	awaitListening(t, target)
	eventually(t, "the gateway leaves its former port", func() error {
		l, err := net.Listen("tcp", gateway2)
		if err == nil {
			err = l.Close()
		}
		return err
	})
	forward(t, gateway2, target)
	client := m.Clients()[0]
	awaitHosts(t, client, map[string]host{local1: {Weight: 1}, gateway2: {Weight: 1}})
	if got := slices.Sorted(maps.Keys(versionsOf(t, client, 50))); !slices.Equal(got, []string{"v1", "v2"}) {
		t.Errorf("answers of %q, want both versions", got)
	}
}

// awaitListening waits until something accepts connections at an address.
func awaitListening(t *testing.T, address string) {
	t.Helper()
	eventually(t, "a listener at "+address, func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// gatewayOfDemotedCluster has cluster1 run a pod in network2, so that the gateway
// there stands in for endpoints of both clusters, and then takes cluster2 away,
// which demotes it. Its endpoints add nothing to the share of the gateway.
func gatewayOfDemotedCluster(t *testing.T, m *demo.Mesh) {
	client := m.Clients()[0]
	replace(t, filepath.Join(m.Dir("cluster1"), "far.yaml"), `
apiVersion: v1
kind: ConfigMap
metadata: {name: meshctl-clusters, namespace: istio-system}
data:
  clusters.yaml: |
    clusters: {cluster2: {onLost: demote}}
---
apiVersion: v1
kind: Pod
metadata:
  name: far
  namespace: sample
  labels: {app: helloworld, security.istio.io/tlsMode: istio, topology.istio.io/network: network2}
spec: {serviceAccountName: helloworld, containers: []}
status: {phase: Running, podIP: 127.2.0.11, podIPs: [{ip: 127.2.0.11}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far, namespace: sample, labels: {kubernetes.io/service-name: helloworld}}
addressType: IPv4
ports: [{name: http, port: 5000}]
endpoints: [{addresses: [127.2.0.11], targetRef: {kind: Pod, name: far, namespace: sample}}]
`)
	awaitHosts(t, client, map[string]host{local1: {Weight: 1}, gateway2: {Weight: 2}})
	away := m.Dir("cluster2") + "-away"
	if err := os.Rename(m.Dir("cluster2"), away); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Rename(away, m.Dir("cluster2")); err != nil {
			t.Error(err)
		}
	}()
	awaitHosts(t, client, map[string]host{local1: {Weight: 1}, gateway2: {Weight: 1}})
	halfEach(t, client)
}

// halfEach fails unless about half of the answers are of each version.
func halfEach(t *testing.T, c *demo.Client) {
	t.Helper()
	const requests, most = 1000, 565 // 4.1 standard deviations from one half
	if got := versionsOf(t, c, requests); got["v1"] > most || got["v2"] > most {
		t.Errorf("answers %v, want half of each version", got)
	}
}

// forward passes connections to an address on to another one until the test ends,
// as the load balancer of a Service does.
func forward(t *testing.T, from, to string) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed
			}
			all.Go(func() { splice(t, in, to) })
		}
	})
}

// splice copies both ways until one of the ends closes or the test ends.
func splice(t *testing.T, in net.Conn, to string) {
	defer in.Close()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return // the client sees a closed connection
	}
	defer out.Close()
	stop := context.AfterFunc(t.Context(), func() {
		_ = in.Close()
		_ = out.Close()
	})
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
	_ = in.Close()
	<-ended
}

// changed replaces a text that must be there.
func changed(t *testing.T, s, from, to string) string {
	t.Helper()
	if !strings.Contains(s, from) {
		t.Fatalf("no %q in\n%s", from, s)
	}
	return strings.Replace(s, from, to, 1)
}

// withoutService takes the document of the Service out of a file.
func withoutService(t *testing.T, s string) string {
	t.Helper()
	var kept []string
	for doc := range strings.SplitSeq(s, "---\n") {
		if !strings.Contains(doc, "kind: Service\n") {
			kept = append(kept, doc)
		}
	}
	out := strings.Join(kept, "---\n")
	if out == s {
		t.Fatalf("no Service in\n%s", s)
	}
	return out
}

// edit changes a file until restore is called, or the test ends.
func edit(t *testing.T, file string, change func(string) string) (restore func()) {
	t.Helper()
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	replace(t, file, change(string(before)))
	restore = func() { replace(t, file, string(before)) }
	t.Cleanup(restore)
	return restore
}

// host is what Envoy has for one address of a cluster.
type host struct{ Weight, Priority int }

// hostsOf returns what the client's Envoy has for helloworld, by address.
func hostsOf(t *testing.T, c *demo.Client) map[string]host {
	t.Helper()
	var page struct {
		Clusters []struct {
			Name  string
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string
						Port    uint16 `json:"port_value"`
					} `json:"socket_address"`
				}
				host
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal([]byte(adminGet(t, c.Admin(), "/clusters?format=json")), &page); err != nil {
		t.Fatal(err)
	}
	out := map[string]host{}
	for _, cluster := range page.Clusters {
		if cluster.Name != "outbound|5000||helloworld.sample.svc.cluster.local" {
			continue
		}
		for _, h := range cluster.Hosts {
			ip, err := netip.ParseAddr(h.Address.Socket.Address)
			if err != nil {
				t.Fatal(err)
			}
			out[netip.AddrPortFrom(ip, h.Address.Socket.Port).String()] = h.host
		}
	}
	return out
}

// awaitHosts waits until the client's Envoy has exactly these hosts for helloworld.
func awaitHosts(t *testing.T, c *demo.Client, want map[string]host) {
	t.Helper()
	eventually(t, "the client's endpoints", func() error {
		if got := hostsOf(t, c); !maps.Equal(got, want) {
			return fmt.Errorf("(-want +got):\n%s", gocmp.Diff(want, got))
		}
		return nil
	})
}

// versionsOf counts the answers to n requests by version. None may fail.
func versionsOf(t *testing.T, c *demo.Client, n int) map[string]int {
	t.Helper()
	out := map[string]int{}
	for range n {
		a, err := c.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		out[a.Version]++
	}
	return out
}
