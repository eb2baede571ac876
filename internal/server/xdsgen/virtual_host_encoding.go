package xdsgen

import (
	"cmp"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// virtualHost returns the virtual host of a service's port.
func (g *generator) virtualHost(k *hostKey, domains []string) *routev3.VirtualHost {
	client := k.client.Value()
	vh := serviceHost(k.port.Protocol.IsHTTP2())
	vh.Name, vh.Domains = hostName(k.service.Host, k.port.Number), domains
	if k.virtual != nil {
		vh.Routes = g.virtualServiceRoutes(k.virtual, routeContext{gateway: snapshot.MeshGateway, port: k.port.Number, client: client.routes, retries: client.retries})
		return vh
	}
	action := defaultAction(g.retryPolicy(client.retries))
	action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: k.cluster().String()}
	r := defaultRoute()
	r.Decorator, r.Action = &routev3.Decorator{Operation: vh.GetName() + everyOperation}, &routev3.Route_Route{Route: action}
	vh.Routes = []*routev3.Route{r}
	return vh
}

// serviceHost returns the fields that are equal in virtual hosts of services.
func serviceHost(http2 bool) *routev3.VirtualHost {
	vh := &routev3.VirtualHost{IncludeRequestAttemptCount: true}
	if http2 {
		vh.TypedPerFilterConfig = http2ALPN()
	}
	return vh
}

// defaultRoute returns the route of all requests to a service, without its action and decorator.
func defaultRoute() *routev3.Route { return &routev3.Route{Name: "default", Match: everyPath} }

// defaultAction returns the action of a default route, without its cluster.
func defaultAction(retries *routev3.RetryPolicy) *routev3.RouteAction {
	return &routev3.RouteAction{
		Timeout:        noTime,
		MaxGrpcTimeout: noTime, //nolint:staticcheck // Istio's routes have it and every Envoy reads it
		RetryPolicy:    retries,
	}
}

// everyOperation follows the name of the virtual host in the name of a default route's traces.
const everyOperation = "/*"

// cluster returns the name of the cluster of the service's port.
func (k *hostKey) cluster() mesh.ClusterName {
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
	var g generator
	action, err1 := xdswire.Marshal(defaultAction(g.retryPolicy(retries)))
	route, err2 := xdswire.Marshal(defaultRoute())
	host, err3 := xdswire.Marshal(serviceHost(http2))
	if err := cmp.Or(g.err, err1, err2, err3); err != nil {
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
	cluster := k.cluster().AppendTo(room[:0])
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
		return protowire.AppendVarint(appendField(b, number), uint64(size))
	}
	b = open(b, hostsField, host)
	b = protowire.AppendString(appendField(b, hostNameField), name)
	for _, d := range domains {
		b = protowire.AppendString(appendField(b, hostDomainsField), d)
	}
	b = open(b, fieldHostRoutes, route)
	b = open(b, fieldDecorator, field(operation))
	b = append(append(open(b, fieldOperation, operation), name...), everyOperation...)
	b = open(b, fieldRouteAction, action)
	return protowire.AppendBytes(appendField(b, fieldActionCluster), cluster)
}
