package xdsgen

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

func (t *target) cluster() string {
	return mesh.ClusterName{Direction: mesh.Inbound, Port: t.Port}.String()
}

func (f *inboundFacts) clusters(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*xdswire.Resource
	for i := range f.Targets {
		c, err := f.cluster(&f.Targets[i])
		if err != nil {
			return nil, err
		}
		r, err := enc.Resource(xdswire.ClusterType, c.Name, c)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	if !f.Captured {
		return out, nil
	}
	c, err := passthroughCluster(mesh.InboundPassthroughCluster, f.ConnectTimeout)
	if err != nil {
		return nil, err
	}
	c.UpstreamBindConfig = f.loopbackSource()
	r, err := enc.Resource(xdswire.ClusterType, c.Name, c)
	return append(out, r), err
}

func (f *inboundFacts) cluster(t *target) (*clusterv3.Cluster, error) {
	c := &clusterv3.Cluster{
		Name:            t.cluster(),
		AltStatName:     t.cluster() + ";",
		ConnectTimeout:  durationpb.New(f.ConnectTimeout),
		CircuitBreakers: unlimited(),
		CommonLbConfig:  &clusterv3.Cluster_CommonLbConfig{},
		Metadata:        serviceMetadata(t.Name, t.Space, t.Host),
	}
	switch {
	case t.Protocol.IsHTTP2():
		if err := setProtocolOptions(c, explicitHTTP2()); err != nil {
			return nil, err
		}
	case t.Protocol == mesh.Auto:
		if err := setProtocolOptions(c, downstreamProtocol(0)); err != nil {
			return nil, err
		}
	}
	addr, fixed, err := t.address()
	if err != nil {
		return nil, err
	}
	if !fixed {
		c.ClusterDiscoveryType = discovery(clusterv3.Cluster_ORIGINAL_DST)
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		c.UpstreamBindConfig = f.loopbackSource()
		c.CleanupInterval = durationpb.New(never)
		return c, nil
	}
	c.ClusterDiscoveryType = discovery(clusterv3.Cluster_STATIC)
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: c.Name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: addr}},
		}}}},
	}
	return c, nil
}

// never is the longest time that Envoy accepts. The addresses of the pod
// itself are few: they need not be forgotten.
const never = 9223372035 * time.Second

// address is where the application listens, if the Sidecar fixes it or
// connections are not captured.
func (t *target) address() (*corev3.Address, bool, error) {
	if t.Endpoint == "" {
		if t.Bind == "" {
			return nil, false, nil
		}
		return address(loopback(t.Bind), t.Port), true, nil
	}
	if path, ok := strings.CutPrefix(t.Endpoint, "unix://"); ok {
		return pipe(path), true, nil
	}
	ap, err := netip.ParseAddrPort(t.Endpoint)
	if err != nil {
		return nil, false, fmt.Errorf("sidecar ingress of port %d: defaultEndpoint %q is not an address and port", t.Port, t.Endpoint)
	}
	return address(ap.Addr().String(), uint32(ap.Port())), true, nil
}

func loopback(like string) string {
	if strings.Contains(like, ":") {
		return "::1"
	}
	return "127.0.0.1"
}

// loopbackSource lets the redirection tell connections of the proxy to its
// application from those that must be captured.
func (f *inboundFacts) loopbackSource() *corev3.BindConfig {
	source := func(ip string) *corev3.SocketAddress {
		return &corev3.SocketAddress{Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0}}
	}
	switch f.Families {
	case v6:
		return &corev3.BindConfig{SourceAddress: source("::6")}
	case v4 | v6:
		return &corev3.BindConfig{
			SourceAddress:        source("127.0.0.6"),
			ExtraSourceAddresses: []*corev3.ExtraSourceAddress{{Address: source("::6")}},
		}
	}
	return &corev3.BindConfig{SourceAddress: source("127.0.0.6")}
}
