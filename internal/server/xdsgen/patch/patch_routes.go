package patch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/gateways"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Routes applies the patches to a route configuration. servers holds its servers, for a
// gateway.
func (p *patcher) Routes(enc *xdswire.Encoder, r *xdswire.Resource, servers []gateways.GatewayRouteServer) (*xdswire.Resource, error) {
	if head, parts, tail, ok := r.Parted(); ok {
		return p.partedRoutes(enc, r, head, parts, tail)
	}
	rc := new(routev3.RouteConfiguration)
	if err := proto.Unmarshal(r.Message(), rc); err != nil {
		return nil, fmt.Errorf("decode %s to patch it: %w", r.Name, err)
	}
	if p.routeConfiguration(rc, servers); !p.changed {
		return r, nil
	}
	return enc.Resource(xdswire.RouteType, r.Name, rc)
}

// routeConfiguration applies the patches to a route configuration, from the outside to the
// inside, as Istio does.
func (p *patcher) routeConfiguration(rc *routev3.RouteConfiguration, servers []gateways.GatewayRouteServer) {
	at := routesAt{rc.GetName(), servers}
	p.mergeRoutes(at, rc)
	var hosts []*routev3.VirtualHost
	taken := make(map[string]bool)
	for _, vh := range rc.GetVirtualHosts() {
		if vh = p.virtualHost(at, vh); vh != nil {
			hosts = append(hosts, vh)
			takeDomains(taken, vh.GetDomains())
		}
	}
	rc.VirtualHosts = append(hosts, p.addedHosts(at, taken)...)
}

// mergeRoutes merges patches into a route configuration.
func (p *patcher) mergeRoutes(at routesAt, rc *routev3.RouteConfiguration) {
	var merges []*snapshot.Patch
	for patch := range p.Of(networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION, isMerge) {
		if at.Matches(patch) {
			merges = append(merges, patch)
		}
	}
	name := rc.GetName()
	p.tryAll(merges, rc, func(patch *snapshot.Patch) error { return mergeValue(patch, rc) })
	rc.Name = name // listeners name it
}

// virtualHost applies the patches to a virtual host and its routes. It returns nil if a
// patch removes it.
func (p *patcher) virtualHost(at routesAt, vh *routev3.VirtualHost) *routev3.VirtualHost {
	out := patchItems(p, p.Of(networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST, isNoInsertion), []*routev3.VirtualHost{vh}, items[*routev3.VirtualHost]{
		here: at.Matches, is: vhostMatches,
	})
	if len(out) == 0 {
		return nil
	}
	vh = out[0]
	routes := items[*routev3.Route]{
		here:  func(patch *snapshot.Patch) bool { return at.Matches(patch) && vhostMatches(patch, vh) },
		named: func(patch *snapshot.Patch) bool { return hostOf(patch).GetRoute() != nil },
		is:    routeMatches,
		end:   func(list []*routev3.Route) int { return len(list) },
	}
	const target = networkingv1alpha3.EnvoyFilter_HTTP_ROUTE
	vh.Routes = patchItems(p, p.Of(target, isNoInsertion), vh.GetRoutes(), routes)
	vh.Routes = patchItems(p, p.Of(target, isInsertion), vh.GetRoutes(), routes)
	return vh
}

// addedHosts returns the virtual hosts that patches add. Envoy refuses a route configuration
// in which two virtual hosts have one domain.
func (p *patcher) addedHosts(at routesAt, taken map[string]bool) []*routev3.VirtualHost {
	var out []*routev3.VirtualHost
	for patch := range p.Of(networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST, isInsertion) {
		vh, ok := patch.Value.(*routev3.VirtualHost)
		if !ok || !at.Matches(patch) {
			continue
		}
		if i := slices.IndexFunc(vh.GetDomains(), func(d string) bool { return taken[strings.ToLower(d)] }); i >= 0 {
			p.fault(patch, fmt.Errorf("another virtual host has the domain %q", vh.GetDomains()[i]))
			continue
		}
		takeDomains(taken, vh.GetDomains())
		out, p.changed = append(out, vh), true
	}
	return out
}

func takeDomains(taken map[string]bool, domains []string) {
	for _, d := range domains {
		taken[strings.ToLower(d)] = true
	}
}

// patchedHost is an encoded virtual host with patches.
type patchedHost struct {
	xdswire.Part
	removed, changed bool
	domains          []string
	faults           Faults
}

// patchedHostKey holds everything that a patchedHost depends on.
type patchedHostKey struct {
	part    *xdswire.Part
	routes  string // name of the route configuration
	patches wire.List[*snapshot.Patch]
}

// partedRoutes applies the patches to a route configuration of parts, which are virtual
// hosts. The configurations that have a virtual host in common share the patched one.
func (p *patcher) partedRoutes(enc *xdswire.Encoder, r *xdswire.Resource, head []byte, parts *xdswire.Parts, tail []byte) (*xdswire.Resource, error) {
	at := routesAt{name: r.Name}
	changes := make(map[string]*xdswire.Part)
	taken := make(map[string]bool)
	kept := patchedParts{of: r}
	for part := range parts.All {
		if !p.concernsHost(part.Name) {
			continue
		}
		h, err := xdswire.Shared(enc, patchedHostKey{part, r.Name, p.patches}, func() (*patchedHost, error) { return patchHost(at, part, p.patches) })
		if err != nil {
			return nil, err
		}
		kept.hosts = append(kept.hosts, h)
		takeDomains(taken, h.domains)
		p.faults = append(p.faults, h.faults...)
		if h.changed {
			p.changed, changes[part.Name] = true, &h.Part
			if h.removed {
				changes[part.Name] = nil
			}
		}
	}
	rc, rest := new(routev3.RouteConfiguration), new(routev3.RouteConfiguration)
	if err := proto.Unmarshal(head, rc); err != nil {
		return nil, fmt.Errorf("decode %s to patch it: %w", r.Name, err)
	}
	if err := proto.Unmarshal(tail, rest); err != nil {
		return nil, fmt.Errorf("decode %s to patch it: %w", r.Name, err)
	}
	p.mergeRoutes(at, rc)
	var hosts []*routev3.VirtualHost
	for _, vh := range rest.GetVirtualHosts() {
		if vh = p.virtualHost(at, vh); vh != nil {
			hosts = append(hosts, vh)
			takeDomains(taken, vh.GetDomains())
		}
	}
	rest.VirtualHosts = append(hosts, p.addedHosts(at, taken)...)
	if !p.changed {
		return r, nil
	}
	head, err := xdswire.Marshal(rc)
	if err != nil {
		return nil, err
	}
	if tail, err = xdswire.Marshal(rest); err != nil {
		return nil, err
	}
	return enc.Parted(xdswire.RouteType, r.Name, head, parts.With(changes), tail).Keeping(kept), nil
}

// patchedParts keeps the parts from which a patched resource was made.
type patchedParts struct {
	of    *xdswire.Resource
	hosts []*patchedHost
}

// concernsHost reports whether some patch may concern a virtual host. An added one concerns
// the domains of all.
func (p *patcher) concernsHost(name string) bool {
	for patch := range p.patches.All {
		if patch.Spec.GetApplyTo() != networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION {
			vhost := hostOf(patch).GetName()
			if vhost == "" || vhost == name || patch.Spec.GetApplyTo() == networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST && isInsertion(patch.Spec.GetPatch().GetOperation()) {
				return true
			}
		}
	}
	return false
}

func patchHost(at routesAt, part *xdswire.Part, patches wire.List[*snapshot.Patch]) (*patchedHost, error) {
	rc := new(routev3.RouteConfiguration)
	if err := proto.Unmarshal(part.Wire(), rc); err != nil {
		return nil, fmt.Errorf("decode %s to patch it: %w", part.Name, err)
	}
	p := patcher{patches: patches, resource: at.name}
	vh := p.virtualHost(at, rc.GetVirtualHosts()[0])
	out := &patchedHost{changed: p.changed, faults: p.faults}
	if vh == nil {
		out.removed = true
		return out, nil
	}
	wire, err := xdswire.Marshal(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{vh}})
	out.Part, out.domains = xdswire.NewPart(part.Name, wire), vh.GetDomains()
	return out, err
}

// routesAt names a route configuration, and the servers of a gateway that use it.
type routesAt struct {
	name    string
	servers []gateways.GatewayRouteServer
}

// Matches reports whether the route configuration has what a patch names.
func (at routesAt) Matches(patch *snapshot.Patch) bool {
	m := patch.Spec.GetMatch().GetRouteConfiguration()
	if m.GetName() != "" && m.GetName() != at.name {
		return false
	}
	if at.servers == nil {
		return m.GetPortNumber() == 0 || m.GetPortNumber() == portOfRoutes(at.name)
	}
	portName := ""
	if parts := strings.SplitN(at.name, ".", 4); parts[0] == "https" && len(parts) == 4 {
		portName = parts[2]
	}
	if m.GetPortName() != "" && m.GetPortName() != portName {
		return false
	}
	return slices.ContainsFunc(at.servers, func(s gateways.GatewayRouteServer) bool {
		return (m.GetPortNumber() == 0 || m.GetPortNumber() == s.Port) && (m.GetGateway() == "" || m.GetGateway() == s.Gateway)
	})
}

// portOfRoutes returns the port of a sidecar's route configuration by its name: the name of
// an inbound cluster, host:port, or a port.
func portOfRoutes(name string) uint32 {
	if c, ok := mesh.ParseClusterName(name); ok {
		return c.Port
	}
	number, _ := strconv.ParseUint(name[strings.LastIndex(name, ":")+1:], 10, 16)
	return uint32(number)
}

func hostOf(patch *snapshot.Patch) *networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch_VirtualHostMatch {
	return patch.Spec.GetMatch().GetRouteConfiguration().GetVhost()
}

func vhostMatches(patch *snapshot.Patch, vh *routev3.VirtualHost) bool {
	m := hostOf(patch)
	return (m.GetName() == "" || m.GetName() == vh.GetName()) && (m.GetDomainName() == "" || slices.Contains(vh.GetDomains(), m.GetDomainName()))
}

func routeMatches(patch *snapshot.Patch, r *routev3.Route) bool {
	m := hostOf(patch).GetRoute()
	if m.GetName() != "" && m.GetName() != r.GetName() {
		return false
	}
	switch m.GetAction() {
	case networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ROUTE:
		return r.GetRoute() != nil
	case networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch_RouteMatch_REDIRECT:
		return r.GetRedirect() != nil
	case networkingv1alpha3.EnvoyFilter_RouteConfigurationMatch_RouteMatch_DIRECT_RESPONSE:
		return r.GetDirectResponse() != nil
	}
	return true
}
