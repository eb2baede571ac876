package xdsgen

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// egressStreams returns the listeners of the Sidecar's egress listeners at a port number that
// have another protocol than HTTP.
func (v listenerView) egressStreams(s *snapshot.Snapshot, number uint32) []Unit {
	var units []Unit
	for i, e := range v.scope.egress() {
		protocol, _ := mesh.ParseProtocol(e.GetPort().GetProtocol())
		if e.GetPort().GetNumber() != number || protocol.IsHTTP() {
			continue
		}
		sc := v.scope.through(i)
		services := sc.at(s, number)
		if services.none() {
			continue
		}
		listeners := v.listeners(s, services, sc)
		listeners.streamsOnly = true
		if binds := bindsPort(e, v.captured); binds || e.GetBind() != "" {
			units = append(units, boundStreams{listeners, e.GetBind(), binds})
		} else {
			units = append(units, listeners)
		}
	}
	return units
}

// boundStreams generates the listener at one address for connections to services. It chooses
// a service by the server name of TLS or an address range; the oldest other service gets all
// other connections.
type boundStreams struct {
	portListeners
	bind  string // empty means the loopback addresses
	binds bool   // see bindsPort
}

func (u boundStreams) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := generator{enc: enc}
	w := wildcard{g: &g, o: u.options()}
	for svc := range u.services.all {
		if !toDestination(svc) { // the destination would be this listener
			w.add(svc, svc.Port(u.services.number))
		}
	}
	if w.rest != nil {
		w.chains, w.rest = append(w.chains, w.rest), nil // its match is empty
	}
	at := []string{u.bind}
	if u.bind == "" {
		at = u.families.loopbacks()
	}
	if len(w.chains) == 0 || u.reserved && (u.bind == "0.0.0.0" || u.bind == "::") {
		return nil, nil
	}
	l := &listenerv3.Listener{
		Name:                             at[0] + "_" + portString(w.o.port),
		TrafficDirection:                 corev3.TrafficDirection_OUTBOUND,
		FilterChains:                     w.chains,
		ContinueOnListenerFiltersTimeout: true,
		ListenerFiltersTimeout:           durationpb.New(u.settings.DetectionTimeout),
		BindToPort:                       boolean(u.binds),
	}
	if w.tls {
		l.ListenerFilters = []*listenerv3.ListenerFilter{g.tlsInspector()}
	}
	setAddress(l, w.o.port, at...)
	g.clientListener(l, u.settings, w.o.port)
	return g.resources()
}

// joinedListeners generates the listeners of several units.
type joinedListeners struct{ units list[Unit] }

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
