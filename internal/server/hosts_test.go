package server

import (
	"context"
	"errors"
	"net/netip"
	"testing"
)

// Load balancers of some clouds have host names alone: nobody is served before they
// are asked for, so that who comes back keeps the endpoints behind them.
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
	refused := s.clustersPage().Clusters[0].RefusedGateways
	if len(refused) != 1 || refused[0].Address != "gone.example" {
		t.Errorf("refused %v", refused)
	}
}
