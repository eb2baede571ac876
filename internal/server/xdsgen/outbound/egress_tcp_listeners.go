package outbound

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// egressStreams returns the listeners of the Sidecar's egress listeners at a port number that
// have another protocol than HTTP.
func (v View) egressStreams(s *snapshot.Snapshot, number uint32) []units.Unit {
	var units []units.Unit
	for i, e := range v.Scope.Egress() {
		protocol, _ := mesh.ParseProtocol(e.GetPort().GetProtocol())
		if e.GetPort().GetNumber() != number || protocol.IsHTTP() {
			continue
		}
		sc := v.Scope.Through(i)
		services := sc.At(s, number)
		if services.None() {
			continue
		}
		listeners := v.listeners(s, services, sc)
		listeners.streamsOnly = true
		if binds := proxy.BindsPort(e, v.Captured); binds || e.GetBind() != "" {
			units = append(units, BoundStreams{listeners, e.GetBind(), binds})
		} else {
			units = append(units, listeners)
		}
	}
	return units
}

// BoundStreams generates the listener at one address for connections to services. It chooses
// a service by the server name of TLS or an address range; the oldest other service gets all
// other connections.
type BoundStreams struct {
	PortListeners
	bind  string // empty means the loopback addresses
	binds bool   // see bindsPort
}

// Generate implements units.Unit.
func (u BoundStreams) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	w := wildcard{g: &g, o: u.options()}
	for svc := range u.Services.All {
		if !endpoints.ToDestination(svc) { // the destination would be this listener
			w.Add(svc, svc.Port(u.Services.Number))
		}
	}
	if w.rest != nil {
		w.chains, w.rest = append(w.chains, w.rest), nil // its match is empty
	}
	at := []string{u.bind}
	if u.bind == "" {
		at = u.families.Loopbacks()
	}
	if len(w.chains) == 0 || u.reserved && (u.bind == "0.0.0.0" || u.bind == "::") {
		return nil, nil
	}
	l := &listenerv3.Listener{
		Name:                             at[0] + "_" + wire.PortString(w.o.Port),
		TrafficDirection:                 corev3.TrafficDirection_OUTBOUND,
		FilterChains:                     w.chains,
		ContinueOnListenerFiltersTimeout: true,
		ListenerFiltersTimeout:           durationpb.New(u.settings.DetectionTimeout),
		BindToPort:                       wire.Boolean(u.binds),
	}
	if w.tls {
		l.ListenerFilters = []*listenerv3.ListenerFilter{inbound.TLSInspector(&g)}
	}
	setAddress(l, w.o.Port, at...)
	filters.ClientListener(&g, l, u.settings, w.o.Port)
	return g.Resources()
}

// joinedListeners generates the listeners of several units.
type joinedListeners struct{ units wire.List[units.Unit] }

func (u joinedListeners) Type() string { return xdswire.ListenerType }

func (u joinedListeners) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*xdswire.Resource
	for unit := range u.units.All {
		resources, err := unit.Generate(enc)
		if err != nil {
			return nil, err
		}
		out = append(out, resources...)
	}
	return out, nil
}
