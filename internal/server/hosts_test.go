package server

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestHostNameOfGateway: the server resolves the host names of load balancers before it
// serves, so that proxies that reconnect keep the endpoints behind them.
func TestHostNameOfGateway(t *testing.T) {
	asked, answer := make(chan string, 10), make(chan struct{})
	s, stop, done := launch(t, func(c *Config) {
		write(t, c.ConfigDir, "eastwest.yaml", `apiVersion: v1
kind: Service
metadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: n2}}
spec: {type: LoadBalancer, clusterIP: 10.96.9.9, ports: [{name: tls, port: 15443}]}
status: {loadBalancer: {ingress: [{hostname: lb.example}, {hostname: gone.example}]}}
`)
		c.LookupHost = func(_ context.Context, host string) ([]netip.Addr, error) {
			asked <- host
			<-answer
			if host == "lb.example." {
				return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
			}
			return nil, errors.New("no such host")
		}
	})
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	<-asked
	<-asked
	if s.ready.Load() || s.registry.Current() != nil {
		t.Error("ready before the host names were asked for")
	}
	close(answer)
	waitFor(t, "readiness", s.ready.Load)
	list := s.registry.Current().Gateways.ByNetwork["n2"]
	if len(list) != 1 || list[0].Address.String() != "192.0.2.1" {
		t.Errorf("gateways %v", list)
	}
	refused := s.sources.Page().Clusters[0].RefusedGateways
	if len(refused) != 1 || refused[0].Address != "gone.example" {
		t.Errorf("refused %v", refused)
	}
}

// TestUnreachableNetworkIsShown: the status page and /ready?verbose name a network without
// a gateway, and the reason.
func TestUnreachableNetworkIsShown(t *testing.T) {
	const namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: istio-system, labels: {topology.istio.io/network: %s}}\n"
	away := t.TempDir()
	s, stop, done := launch(t, func(c *Config) {
		c.RemoteDirs = []ClusterDir{{"away", away}}
		write(t, c.ConfigDir, "network.yaml", fmt.Sprintf(namespace, "n1"))
		write(t, away, "mesh.yaml", fmt.Sprintf(namespace, "n2")+`---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: sample}
spec: {clusterIP: 10.97.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far-1, namespace: sample, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
endpoints: [{addresses: [10.2.0.1]}]
ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: n2}}
spec: {type: LoadBalancer, clusterIP: 10.97.9.9, ports: [{name: tls, port: 15443}]}
`)
	})
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	waitFor(t, "readiness", s.ready.Load)
	const want = "network n2: proxies in other networks get none of its endpoints: Service istio-system/eastwest of cluster away: it has no address"
	if list := s.sources.Page().UnreachableNetworks; len(list) != 1 || !strings.HasPrefix(list[0].String(), want) {
		t.Errorf("the page has %v, want %s", list, want)
	}
	if notes := s.notes(); !slices.ContainsFunc(notes, func(line string) bool { return strings.HasPrefix(line, want) }) {
		t.Errorf("/ready?verbose lacks %q: %q", want, notes)
	}
}
