package xdsgen

import (
	"errors"
	"fmt"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/patch"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Virtual host discovery (VHDS): the route configuration of a port has no virtual hosts but
// catchAll. They are resources of their own, so that a changed VirtualService sends one of them,
// not the whole route configuration.

const (
	// WithoutHosts ends the versions of route configurations without virtual hosts.
	WithoutHosts = "+vhds"
	// HostsOnDemand ends the versions of route configurations whose proxies request the virtual
	// hosts by name.
	HostsOnDemand = "+vhds-on-demand"
)

// SupportsHostDiscovery reports whether a proxy can get virtual hosts one by one, over ADS. Its
// agent must report which virtual hosts it has, because Envoy also reports dropped ones.
func SupportsHostDiscovery(n proxy.Node) bool {
	const oldest = 40 // of Envoy 1
	return n.HoldsHosts && n.ID.Type == mesh.Sidecar && !n.Proxyless && proxy.AtLeastEnvoy(n.Envoy, oldest)
}

// discoverHosts moves the virtual hosts of a sidecar's route configurations to resources of their
// own.
func discoverHosts(a units.Assignment, n proxy.Node) units.Assignment {
	routes := a[xdswire.RouteType].Shared
	a[xdswire.RouteType] = units.Views{Shared: RoutesWithoutHosts{View: routes}}
	a[xdswire.VirtualHostType] = units.Views{Shared: HostView{routes: routes, filtered: n.RequestsHosts}}
	return a
}

// hasHosts reports whether the virtual hosts of a unit's route configuration are resources of
// their own.
func hasHosts(u units.Unit) bool {
	if p, ok := u.(patch.PatchedUnit); ok {
		u = p.Unit
	}
	_, ok := u.(routes.PortRoutes)
	return ok
}

// RoutesWithoutHosts is a view of route configurations, some of them without virtual hosts. View
// has them with their virtual hosts.
type RoutesWithoutHosts struct {
	units.View
	onDemand bool
}

// OnDemand returns the view for proxies that request virtual hosts by name.
func (v RoutesWithoutHosts) OnDemand() RoutesWithoutHosts { return RoutesWithoutHosts{v.View, true} }

// Unit implements View.
func (v RoutesWithoutHosts) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	u := v.View.Unit(s, k)
	if u == nil || !hasHosts(u) {
		return u
	}
	return routesWithoutHosts{u, v.onDemand}
}

// HostView is the view of the virtual hosts that RoutesWithoutHosts lacks.
type HostView struct {
	routes   units.View
	filtered bool // the listeners have onDemandFilter
	onDemand bool
}

// OnDemand returns the view from which proxies request virtual hosts by name.
func (v HostView) OnDemand() HostView {
	v.onDemand = true
	return v
}

// Type implements View.
func (v HostView) Type() string { return xdswire.VirtualHostType }

// Keys implements View.
func (v HostView) Keys() units.Keys {
	k := v.routes.Keys()
	return units.Keys{PortFacts: k.PortFacts, Scope: k.Scope}
}

// Unit implements View.
func (v HostView) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	u := v.routes.Unit(s, k)
	if u == nil || !hasHosts(u) {
		return nil
	}
	return hostUnit{u, v.filtered, v.onDemand}
}

// wholeRoutes is a generated route configuration with its virtual hosts.
type wholeRoutes struct {
	*xdswire.Resource
	faults error // of EnvoyFilters
}

// wholeRoutesKey is the key of a wholeRoutes.
type wholeRoutesKey struct{ unit units.Unit }

// whole generates the route configuration of a unit, once for both of its views.
func (k wholeRoutesKey) whole(enc *xdswire.Encoder) (*wholeRoutes, error) {
	return xdswire.Shared(enc, k, func() (*wholeRoutes, error) {
		out, err := k.unit.Generate(enc)
		if len(out) == 0 {
			return nil, err
		}
		return &wholeRoutes{out[0], err}, nil
	})
}

// divide returns the parts of the route configuration: its settings, which are encoded, the
// virtual hosts of services, and all other virtual hosts. One of the others may have the domain of
// unknown hosts.
func (r *wholeRoutes) divide() (settings []byte, services *xdswire.Parts, others []encodedHost, err error) {
	head, services, tail, _ := r.Parted()
	if settings, err = routes.WithoutFields(head, routes.HostsField); err != nil {
		return nil, nil, nil, err
	}
	for _, wire := range [][]byte{head, tail} {
		err = errors.Join(err, xdswire.Fields(wire, func(number protowire.Number, message []byte) error {
			if number != routes.HostsField {
				return nil
			}
			var vh routev3.VirtualHost
			err := proto.Unmarshal(message, &vh)
			others = append(others, encodedHost{vh.GetName(), message, slices.Contains(vh.GetDomains(), "*")})
			return err
		}))
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("decode the virtual hosts of %s: %w", r.Name, err)
	}
	return settings, services, others, nil
}

// encodedHost is a virtual host of a route configuration.
type encodedHost struct {
	name       string
	message    []byte
	forUnknown bool // its domain is *
}

// routesWithoutHosts generates a route configuration without virtual hosts.
type routesWithoutHosts struct {
	units.Unit
	onDemand bool
}

func (u routesWithoutHosts) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	r, err := wholeRoutesKey{u.Unit}.whole(enc)
	if err != nil {
		return nil, err
	}
	source, err := xdswire.Marshal(&routev3.RouteConfiguration{Vhds: &routev3.Vhds{ConfigSource: wire.AdsSource()}})
	if err != nil {
		return nil, err
	}
	settings, _, others, err := r.divide()
	if err != nil {
		return nil, err
	}
	if u.onDemand {
		return []*xdswire.Resource{enc.Marked(xdswire.RouteType, r.Name, HostsOnDemand, settings, source, routes.IgnorePort()).Keeping(r)}, r.faults
	}
	var unknown []byte
	for _, h := range others {
		if h.forUnknown {
			unknown = protowire.AppendBytes(protowire.AppendTag(unknown, routes.HostsField, protowire.BytesType), h.message)
		}
	}
	return []*xdswire.Resource{enc.Marked(xdswire.RouteType, r.Name, WithoutHosts, settings, source, unknown).Keeping(r)}, r.faults
}

// hostUnit generates the virtual hosts of a route configuration.
type hostUnit struct {
	routes             units.Unit
	filtered, onDemand bool
}

func (u hostUnit) Type() string { return xdswire.VirtualHostType }

func (u hostUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	r, err := wholeRoutesKey{u.routes}.whole(enc)
	if err != nil {
		return nil, err
	}
	_, services, others, err := r.divide()
	if err != nil {
		return nil, err
	}
	out := make([]*xdswire.Resource, 0, services.Len()+len(others))
	cache := xdswire.CacheOf[discoveredHost, xdswire.Resource](enc)
	for part := range services.All {
		host, err := cache.Get(discoveredHost{part, r.Name, u.filtered}, func(h discoveredHost) (*xdswire.Resource, error) { return h.make(enc), nil })
		if err != nil {
			return nil, err
		}
		out = append(out, host)
	}
	for _, h := range others {
		if u.onDemand || !h.forUnknown {
			out = append(out, discovered(enc, r.Name, h.name, h.message, u.filtered))
		}
	}
	if u.onDemand {
		first := r.Name + routes.HostSeparator + routes.FirstHost
		out = append(out, enc.Raw(xdswire.VirtualHostType, first, routes.HostWith(first, routes.FirstHost), routes.NoRoute()))
	}
	return out, nil
}

// discoveredHost is a virtual host of a route configuration.
type discoveredHost struct {
	part     *xdswire.Part
	routes   string
	filtered bool
}

// make encodes the virtual host.
func (h discoveredHost) make(enc *xdswire.Encoder) *xdswire.Resource {
	wire := h.part.Wire()
	_, _, n := protowire.ConsumeTag(wire)
	message, _ := protowire.ConsumeBytes(wire[n:])
	return discovered(enc, h.routes, h.part.Name, message, h.filtered)
}

// discovered returns the resource of an encoded virtual host. The virtual host gets the name of the
// resource, because Envoy removes it by that name: of two names in an encoded message, the last one
// counts. With onDemandFilter, its last routes answer the requests that no other route matches.
func discovered(enc *xdswire.Encoder, routeName, name string, message []byte, filtered bool) *xdswire.Resource {
	name = routeName + routes.HostSeparator + name
	if !filtered {
		return enc.Raw(xdswire.VirtualHostType, name, message, routes.HostWith(name))
	}
	return enc.Raw(xdswire.VirtualHostType, name, message, routes.HostWith(name), routes.NoRoute())
}
