package xdsgen

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
)

func (p *inboundPort) cluster() string {
	return mesh.ClusterName{Direction: mesh.Inbound, Port: p.Number}.String()
}

// stats returns the name of the statistics.
func (p *inboundPort) stats() string { return cmp.Or(p.Stats, p.cluster()) }

func (f *inboundWorkload) clusters(g *generator) {
	for i := range f.ports {
		g.cluster(f.cluster(g, &f.ports[i]))
	}
	if f.Captured {
		c := g.passthroughCluster(mesh.InboundPassthroughCluster, f.ConnectTimeout, f.KeepAlive)
		c.UpstreamBindConfig, c.PerConnectionBufferLimitBytes = f.loopbackSource(), hostileClients
		g.cluster(c)
	}
}

// cluster returns the cluster that leads to the application's port.
func (f *inboundWorkload) cluster(g *generator, p *inboundPort) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:           p.cluster(),
		AltStatName:    p.stats() + ";",
		ConnectTimeout: durationpb.New(f.ConnectTimeout),
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{},
		Metadata:       serviceMetadata(append([]serviceID{{p.Name, p.Space, p.Host}}, p.Others.Slice()...)...),
	}
	pool := p.pool()
	setConnectionPool(c, pool, f.KeepAlive, nil)
	http2 := p.Protocol.IsHTTP2() && !pool.GetHttp().GetUseClientProtocol()
	g.setHTTPOptions(c, upstreamHTTP(p.Protocol, true, http2, pool, nil))
	addr := p.address(g)
	if addr == nil {
		c.ClusterDiscoveryType = discovery(clusterv3.Cluster_ORIGINAL_DST)
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		c.UpstreamBindConfig = f.loopbackSource()
		c.CleanupInterval = durationpb.New(never)
		return c
	}
	c.ClusterDiscoveryType = discovery(clusterv3.Cluster_STATIC)
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
func (p *inboundPort) address(g *generator) *corev3.Address {
	if p.Endpoint == "" {
		if p.Bind == "" {
			return nil
		}
		return address(loopback(p.Bind), p.Number)
	}
	if path, ok := strings.CutPrefix(p.Endpoint, snapshot.UnixScheme); ok {
		return pipe(path)
	}
	ap, err := netip.ParseAddrPort(p.Endpoint)
	if err != nil {
		g.fail(fmt.Errorf("sidecar ingress of port %d: defaultEndpoint %q is not an address and port", p.Number, p.Endpoint))
	}
	return address(ap.Addr().String(), uint32(ap.Port()))
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
	if f.Families == v6 {
		return &corev3.BindConfig{SourceAddress: source(mesh.PassthroughIPv6)}
	}
	c := &corev3.BindConfig{SourceAddress: source(mesh.PassthroughIPv4)}
	if f.Families == v4|v6 {
		c.ExtraSourceAddresses = []*corev3.ExtraSourceAddress{{Address: source(mesh.PassthroughIPv6)}}
	}
	return c
}
