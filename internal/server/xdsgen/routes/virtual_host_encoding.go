package routes

import (
	"cmp"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// encodeVirtualHost returns the virtual host of a service's port.
func encodeVirtualHost(g *wire.Generator, k *hostKey, domains []string) *routev3.VirtualHost {
	client := k.client.Value()
	vh := serviceHost(k.port.Protocol.IsHTTP2())
	vh.Name, vh.Domains = hostName(k.service.Host, k.port.Number), domains
	if k.virtual != nil {
		vh.Routes = VirtualServiceRoutes(g, k.virtual, RouteContext{Gateway: snapshot.MeshGateway, Port: k.port.Number, Client: client.routes, Retries: client.retries})
		return vh
	}
	action := defaultAction(retryPolicy(g, client.retries))
	action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: k.Cluster().String()}
	r := defaultRoute()
	r.Decorator, r.Action = &routev3.Decorator{Operation: vh.GetName() + everyOperation}, &routev3.Route_Route{Route: action}
	vh.Routes = []*routev3.Route{r}
	return vh
}

// serviceHost returns the fields that are equal in virtual hosts of services.
func serviceHost(http2 bool) *routev3.VirtualHost {
	vh := &routev3.VirtualHost{IncludeRequestAttemptCount: true}
	if http2 {
		vh.TypedPerFilterConfig = filters.HTTP2ALPN()
	}
	return vh
}

// defaultRoute returns the route of all requests to a service, without its action and decorator.
func defaultRoute() *routev3.Route { return &routev3.Route{Name: "default", Match: wire.EveryPath} }

// defaultAction returns the action of a default route, without its cluster.
func defaultAction(retries *routev3.RetryPolicy) *routev3.RouteAction {
	return &routev3.RouteAction{
		Timeout:        wire.NoTime,
		MaxGrpcTimeout: wire.NoTime, //nolint:staticcheck // Istio's routes have it and every Envoy reads it
		RetryPolicy:    retries,
	}
}

// everyOperation follows the name of the virtual host in the name of a default route's traces.
const everyOperation = "/*"

// Cluster returns the name of the cluster of the service's port.
func (k *hostKey) Cluster() mesh.ClusterName {
	return mesh.ClusterName{Direction: mesh.Outbound, Port: k.port.Number, Host: k.service.Host}
}

// hostEnd is the end of the encoding of virtual hosts without a VirtualService. Virtual hosts with
// the same retries share it.
type hostEnd struct {
	*xdswire.PartEnd
	http2   bool
	retries snapshot.RetryPolicy
	// The sizes of the fields of VirtualHost, Route and RouteAction in it.
	host, route, action int
}

// endOf returns the end of the encoding of a virtual host. The next call may change it.
func (h *virtualHosts) endOf(k *hostKey) (*hostEnd, error) {
	http2, retries := k.port.Protocol.IsHTTP2(), k.client.Value().retries
	if end := &h.end; end.PartEnd != nil && end.http2 == http2 && end.retries == retries {
		return end, nil
	}
	var g wire.Generator
	action, err1 := xdswire.Marshal(defaultAction(retryPolicy(&g, retries)))
	route, err2 := xdswire.Marshal(defaultRoute())
	host, err3 := xdswire.Marshal(serviceHost(http2))
	if err := cmp.Or(g.Err, err1, err2, err3); err != nil {
		return nil, err
	}
	h.end = hostEnd{xdswire.NewPartEnd(action, route, host), http2, retries, len(host), len(route), len(action)}
	return &h.end, nil
}

// Field numbers of messages in a virtual host.
const (
	fieldHostRoutes    = 3 // of VirtualHost
	fieldRouteAction   = 2 // of Route
	fieldDecorator     = 5
	fieldActionCluster = 1 // of RouteAction
	fieldOperation     = 1 // of Decorator
)

// appendStart appends the encoding of the virtual host that generator.virtualHost returns, as a
// field of a route configuration, without its end.
func (k *hostKey) appendStart(b []byte, name string, domains []string, end *hostEnd) []byte {
	var room [256]byte // enough for most services
	cluster := k.Cluster().AppendTo(room[:0])
	// All field numbers have tags of one byte.
	field := func(size int) int { return protowire.SizeTag(1) + protowire.SizeBytes(size) }
	operation := len(name) + len(everyOperation)
	action := field(len(cluster)) + end.action
	route := field(field(operation)) + field(action) + end.route
	host := field(len(name)) + field(route) + end.host
	for _, d := range domains {
		host += field(len(d))
	}
	open := func(b []byte, number protowire.Number, size int) []byte {
		return protowire.AppendVarint(wire.AppendField(b, number), uint64(size))
	}
	b = open(b, HostsField, host)
	b = protowire.AppendString(wire.AppendField(b, hostNameField), name)
	for _, d := range domains {
		b = protowire.AppendString(wire.AppendField(b, hostDomainsField), d)
	}
	b = open(b, fieldHostRoutes, route)
	b = open(b, fieldDecorator, field(operation))
	b = append(append(open(b, fieldOperation, operation), name...), everyOperation...)
	b = open(b, fieldRouteAction, action)
	return protowire.AppendBytes(wire.AppendField(b, fieldActionCluster), cluster)
}
