package inbound

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/clusters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

func (p *inboundPort) Cluster() string {
	return mesh.ClusterName{Direction: mesh.Inbound, Port: p.Number}.String()
}

// stats returns the name of the statistics.
func (p *inboundPort) stats() string { return cmp.Or(p.Stats, p.Cluster()) }

func (f *inboundWorkload) clusters(g *wire.Generator) {
	for i := range f.ports {
		g.Cluster(f.Cluster(g, &f.ports[i]))
	}
	if f.Captured {
		c := clusters.PassthroughCluster(g, mesh.InboundPassthroughCluster, f.ConnectTimeout, f.KeepAlive)
		c.UpstreamBindConfig, c.PerConnectionBufferLimitBytes = f.loopbackSource(), clusters.HostileClients
		g.Cluster(c)
	}
}

// Cluster returns the cluster that leads to the application's port.
func (f *inboundWorkload) Cluster(g *wire.Generator, p *inboundPort) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                          p.Cluster(),
		AltStatName:                   p.stats() + ";",
		ConnectTimeout:                durationpb.New(f.ConnectTimeout),
		CommonLbConfig:                &clusterv3.Cluster_CommonLbConfig{},
		PerConnectionBufferLimitBytes: clusters.HostileClients,
		Metadata:                      clusters.ServiceMetadata(append([]clusters.ServiceID{{Name: p.Name, Space: p.Space, Host: p.Host}}, p.Others.Slice()...)...),
	}
	pool := p.pool()
	clusters.SetConnectionPool(c, pool, f.KeepAlive, nil)
	http2 := p.Protocol.IsHTTP2() && !pool.GetHttp().GetUseClientProtocol()
	clusters.SetHTTPOptions(g, c, clusters.UpstreamHTTP(p.Protocol, true, http2, pool, nil))
	addr := p.address(g)
	if addr == nil {
		c.ClusterDiscoveryType = wire.Discovery(clusterv3.Cluster_ORIGINAL_DST)
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		c.UpstreamBindConfig = f.loopbackSource()
		c.CleanupInterval = durationpb.New(never)
		return c
	}
	c.ClusterDiscoveryType = wire.Discovery(clusterv3.Cluster_STATIC)
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: c.Name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: addr}},
		}}}},
	}
	if f.Captured && !isLocal(addr) {
		c.UpstreamBindConfig = f.loopbackSource()
	}
	return c
}

// isLocal reports whether connections to an address are not redirected to the proxy: it is a
// Unix socket or a loopback address.
func isLocal(a *corev3.Address) bool {
	if a.GetPipe() != nil {
		return true
	}
	ip, err := netip.ParseAddr(a.GetSocketAddress().GetAddress())
	return err == nil && ip.IsLoopback()
}

// never is the longest duration that Envoy accepts. Envoy need not forget the few
// addresses of the pod.
const never = 9223372035 * time.Second

// address returns the address of the application. It returns nil if connections go on to
// their original destination.
func (p *inboundPort) address(g *wire.Generator) *corev3.Address {
	if p.Endpoint == "" {
		if p.Bind == "" {
			return nil
		}
		return wire.Address(loopback(p.Bind), p.Number)
	}
	if path, ok := strings.CutPrefix(p.Endpoint, snapshot.UnixScheme); ok {
		return wire.Pipe(path)
	}
	ap, err := netip.ParseAddrPort(p.Endpoint)
	if err != nil {
		g.Fail(fmt.Errorf("sidecar ingress of port %d: defaultEndpoint %q is not an address and port", p.Number, p.Endpoint))
	}
	return wire.Address(ap.Addr().String(), uint32(ap.Port()))
}

// loopback returns the loopback address of an address's IP version.
func loopback(like string) string {
	if strings.Contains(like, ":") {
		return "::1"
	}
	return "127.0.0.1"
}

// loopbackSource returns the source address of connections to the application. The
// redirection rules recognize them by it and do not redirect them to the proxy again.
func (f *inboundWorkload) loopbackSource() *corev3.BindConfig {
	source := func(ip string) *corev3.SocketAddress {
		return &corev3.SocketAddress{Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0}}
	}
	if f.Families == proxy.V6 {
		return &corev3.BindConfig{SourceAddress: source(mesh.PassthroughIPv6)}
	}
	c := &corev3.BindConfig{SourceAddress: source(mesh.PassthroughIPv4)}
	if f.Families == proxy.V4|proxy.V6 {
		c.ExtraSourceAddresses = []*corev3.ExtraSourceAddress{{Address: source(mesh.PassthroughIPv6)}}
	}
	return c
}
