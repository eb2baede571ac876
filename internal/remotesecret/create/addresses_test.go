package create

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/test/kube"
)

// TestFind finds addresses in objects of kubeadm, kind, k3d, minikube and load
// balancers.
func TestFind(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	find := func() []string {
		t.Helper()
		found, err := FindAddresses(t.Context(), c.Config())
		if err != nil || len(found.Unread) > 0 {
			t.Fatal(err, found.Unread)
		}
		var out []string
		for _, f := range found.Addresses {
			out = append(out, strings.Replace(f.URL, c.Addr(), "ADDR", 1)+" "+f.Source)
		}
		return out
	}
	if diff := cmp.Diff([]string{"https://ADDR kubeconfig"}, find()); diff != "" {
		t.Errorf("of a cluster that says nothing (-want +got):\n%s", diff)
	}

	c.Apply(t, `
{apiVersion: v1, kind: ConfigMap, metadata: {name: cluster-info, namespace: kube-public}, data: {kubeconfig: '{clusters: [{name: "", cluster: {server: "https://api.example.com:443/"}}]}'}}
---
{apiVersion: v1, kind: Service, metadata: {name: api}, spec: {type: LoadBalancer, ports: [{port: 6443}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {hostname: lb.example.com}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: shop}, spec: {type: LoadBalancer, ports: [{port: 443}]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.2}]}}}
---
{apiVersion: v1, kind: Node, metadata: {name: east-control-plane, labels: {node-role.kubernetes.io/control-plane: ""}}, spec: {providerID: kind://docker/east/east-control-plane},
  status: {addresses: [{type: InternalIP, address: 172.18.0.2}, {type: Hostname, address: east-control-plane}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: k3d-west-server-0, labels: {node-role.kubernetes.io/control-plane: "true"}}, spec: {providerID: "k3s://k3d-west-server-0"},
  status: {addresses: [{type: InternalIP, address: 172.19.0.3}, {type: Hostname, address: k3d-west-server-0}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: minikube, labels: {node-role.kubernetes.io/control-plane: "", minikube.k8s.io/name: minikube}},
  status: {addresses: [{type: InternalIP, address: 192.168.49.2}, {type: ExternalIP, address: 203.0.113.9}, {type: ExternalDNS, address: mini.example.com}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: worker}, status: {addresses: [{type: InternalIP, address: 172.18.0.3}]}}`)
	nodes := func(port string) []string {
		return []string{
			"https://172.18.0.2:" + port + " Node east-control-plane InternalIP",
			"https://east-control-plane:6443 container of kind",
			"https://172.19.0.3:" + port + " Node k3d-west-server-0 InternalIP",
			"https://k3d-west-serverlb:6443 container of k3d",
			"https://192.168.49.2:8443 Node minikube InternalIP",
			"https://203.0.113.9:8443 Node minikube ExternalIP",
			"https://mini.example.com:8443 Node minikube ExternalDNS",
		}
	}
	others := []string{
		"https://ADDR kubeconfig", "https://api.example.com:443 cluster-info",
		"https://lb.example.com:6443 Service default/api", "https://192.0.2.1:6443 Service default/api",
	}
	sorted := func(list []string) []string { return slices.Sorted(slices.Values(list)) }
	if diff := cmp.Diff(sorted(slices.Concat(others, nodes("6443"))), sorted(find())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// Nodes have the port that the Service kubernetes leads to, as k3s with another one.
	c.Apply(t, `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}},
  addressType: IPv4, ports: [{name: https, port: 7443, protocol: TCP}], endpoints: [{addresses: [172.19.0.3]}]}`)
	want := slices.Concat(others, []string{"https://172.19.0.3:7443 EndpointSlice kubernetes"}, nodes("7443"))
	want = slices.DeleteFunc(want, func(s string) bool { return s == "https://172.19.0.3:7443 Node k3d-west-server-0 InternalIP" }) // once
	if diff := cmp.Diff(sorted(want), sorted(find())); diff != "" {
		t.Errorf("with an EndpointSlice (-want +got):\n%s", diff)
	}
}
