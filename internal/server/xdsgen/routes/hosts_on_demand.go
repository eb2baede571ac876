package routes

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Virtual hosts on demand: the filter of Envoy that onDemandFilter adds to listeners requests the
// virtual host of a request by the name "<route configuration>/<host>". The answer is a virtual
// host for exactly this host, also if the routes are for a wildcard or for unknown hosts. With
// such a domain Envoy would send requests to other hosts there without a request for their own
// virtual hosts.

// ManyHosts reports whether a sidecar sees so many services that it gets virtual hosts on demand.
func ManyHosts(s *snapshot.Snapshot, n proxy.Node, most int) bool {
	if s.Services.Len() <= most {
		return false
	}
	seen := 0
	visibility := proxy.VisibilityOf(s, n)
	for _, svc := range s.Services.All() {
		if visibility.Sees(svc) {
			seen++
		}
		if seen > most {
			return true
		}
	}
	return false
}

// NoRoute holds the encoded last routes of virtual hosts for listeners with onDemandFilter. Without
// a route, Envoy would request the virtual host again, without end. The status is the one that Envoy
// returns for a request without a route.
var NoRoute = encoded(func() proto.Message {
	refused := &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 404}}
	return &routev3.VirtualHost{Routes: []*routev3.Route{
		{Name: mesh.NoRoute, Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: ".*"}}}, Action: refused},
		{Name: mesh.NoRoute, Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_ConnectMatcher_{ConnectMatcher: &routev3.RouteMatch_ConnectMatcher{}}}, Action: refused},
	}}
})

// Numbers of fields of VirtualHost, and of the virtual hosts in RouteConfiguration.
const (
	hostNameField    = 1
	hostDomainsField = 2
	HostsField       = 2
)

// HostWith returns an encoded VirtualHost with a name and domains.
func HostWith(name string, domains ...string) []byte {
	out := protowire.AppendString(protowire.AppendTag(nil, hostNameField, protowire.BytesType), name)
	for _, d := range domains {
		out = protowire.AppendString(protowire.AppendTag(out, hostDomainsField, protowire.BytesType), d)
	}
	return out
}

// IgnorePort is an encoded RouteConfiguration that compares hosts without their port.
var IgnorePort = encoded(func() proto.Message { return &routev3.RouteConfiguration{IgnorePortInHostMatching: true} })

// encoded encodes a constant message at its first use.
func encoded(message func() proto.Message) func() []byte {
	return sync.OnceValue(func() []byte {
		wire, err := xdswire.Marshal(message())
		if err != nil {
			panic(err)
		}
		return wire
	})
}

// WithoutFields returns an encoded message without the fields with some numbers.
func WithoutFields(message []byte, numbers ...protowire.Number) ([]byte, error) {
	out := make([]byte, 0, len(message))
	for len(message) > 0 {
		number, _, n := protowire.ConsumeField(message)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		if !slices.Contains(numbers, number) {
			out = append(out, message[:n]...)
		}
		message = message[n:]
	}
	return out, nil
}

// FirstHost is the host of a virtual host that each route configuration has. Envoy uses a route
// configuration only after it got a virtual host of it. No request has a host with a space.
const FirstHost = "on demand"

// NoHost is the host of UnresolvedHosts.
const NoHost = "no virtual host"

// UnresolvedHosts returns the virtual host that ends Envoy's wait for the virtual hosts of some
// names. Envoy then looks for them again, and continues without the ones that do not exist.
func UnresolvedHosts(enc *xdswire.Encoder, routes string, names []string) *xdswire.Resource {
	name := routes + HostSeparator + NoHost
	return enc.Raw(xdswire.VirtualHostType, name, HostWith(name, NoHost), NoRoute()).WithAliases(names)
}

// HostDomains returns the domains of a virtual host, in lower case as Envoy compares them.
func HostDomains(host *xdswire.Resource) []string {
	var out []string
	_ = xdswire.Fields(host.Message(), func(number protowire.Number, value []byte) error {
		if number == hostDomainsField {
			out = append(out, strings.ToLower(string(value)))
		}
		return nil
	})
	return out
}

// requestedHost is a virtual host with the routes of another one, under its own name.
type requestedHost struct {
	of   *xdswire.Resource
	name string
}

// RequestedHost returns the virtual host that answers a request: it has the routes of another one,
// and the host of the request as its domain. All proxies that request the host share it.
func RequestedHost(enc *xdswire.Encoder, of *xdswire.Resource, routes, host string) (*xdswire.Resource, error) {
	key := requestedHost{of, routes + HostSeparator + host}
	return xdswire.Shared(enc, key, func() (*xdswire.Resource, error) {
		rest, err := WithoutFields(of.Message(), hostNameField, hostDomainsField)
		if err != nil {
			return nil, fmt.Errorf("decode the virtual host %s: %w", of.Name, err)
		}
		return enc.Raw(xdswire.VirtualHostType, key.name, HostWith(key.name, host), rest), nil
	})
}

// HostSeparator is between the route configuration and the virtual host in the name of a
// virtual host. Envoy requires it.
const HostSeparator = "/"
