package filters

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// TimeoutRules finds the timeouts of TCP connections in the DestinationRules of a client.
// It is zero if no rule sets any, so that clients share listeners.
type TimeoutRules struct {
	Used   bool
	client snapshot.RuleClient
}

// TimeoutRulesOf returns the DestinationRules with timeouts of TCP for a client.
func TimeoutRulesOf(s *snapshot.Snapshot, client snapshot.RuleClient) TimeoutRules {
	if !s.RuleTraits.Timeouts {
		return TimeoutRules{}
	}
	return TimeoutRules{true, client}
}

// Reads returns the facts that decide about timeouts.
func (r TimeoutRules) Reads() snapshot.Kinds {
	if r.Used {
		return snapshot.RuleFacts
	}
	return 0
}

// TCPTimeouts ends connections to a port of a service.
type TCPTimeouts struct {
	Idle    time.Duration // 0 means no limit
	HasIdle bool          // otherwise Envoy's default applies
	Max     time.Duration
}

// TimeoutsOf returns the timeouts of the TCP settings of a DestinationRule.
func TimeoutsOf(tcp *networkingv1alpha3.ConnectionPoolSettings_TCPSettings) TCPTimeouts {
	idle := tcp.GetIdleTimeout()
	return TCPTimeouts{Idle: idle.AsDuration(), HasIdle: idle != nil, Max: tcp.GetMaxConnectionDuration().AsDuration()}
}

func setsTimeouts(tcp *networkingv1alpha3.ConnectionPoolSettings_TCPSettings) bool {
	return tcp.GetIdleTimeout() != nil || tcp.GetMaxConnectionDuration() != nil
}

// Set sets the timeouts of a TCP proxy.
func (t TCPTimeouts) Set(p *tcpv3.TcpProxy) {
	if t.HasIdle {
		p.IdleTimeout = durationpb.New(t.Idle)
	}
	if t.Max > 0 {
		p.MaxDownstreamConnectionDuration = durationpb.New(t.Max)
	}
}

// PortTimeouts holds the timeouts of services. Most have none.
type PortTimeouts map[ServicePort]TCPTimeouts

// ServicePort is a port of the service with a key.
type ServicePort struct {
	Service string
	Number  uint32
}

func (p ServicePort) compare(other ServicePort) int {
	return cmp.Or(cmp.Compare(p.Service, other.Service), cmp.Compare(p.Number, other.Number))
}

// Of returns the timeouts of a port of a service.
func (p PortTimeouts) Of(svc *snapshot.MeshService, number uint32) TCPTimeouts {
	return p[ServicePort{svc.Key, number}]
}

// Add adds the timeouts of a port of the service with a key, if it has any.
func (p PortTimeouts) Add(s *snapshot.Snapshot, r TimeoutRules, key string, number uint32) {
	tcp := s.Rules.Get(key).For(r.client).PolicyOver(s.Mesh.DefaultPolicy, number, nil).GetConnectionPool().GetTcp()
	if setsTimeouts(tcp) {
		p[ServicePort{key, number}] = TimeoutsOf(tcp)
	}
}

// TimeoutList holds portTimeouts in a comparable form.
type TimeoutList = wire.List[portTimeout]

type portTimeout struct {
	port     ServicePort
	timeouts TCPTimeouts
}

// List returns the timeouts as a list, which is comparable.
func (p PortTimeouts) List() TimeoutList {
	out := make([]portTimeout, 0, len(p))
	for _, port := range slices.SortedFunc(maps.Keys(p), ServicePort.compare) {
		out = append(out, portTimeout{port, p[port]})
	}
	return wire.ListOf(out)
}

// Of returns the timeouts of ports that have not HTTP.
func (r TimeoutRules) Of(s *snapshot.Snapshot, services iter.Seq[*snapshot.MeshService], numbers ...uint32) (none TimeoutList) {
	if !r.Used {
		return none
	}
	out := make(PortTimeouts)
	for svc := range services {
		if s.Mesh.DefaultPolicy == nil && s.Rules.Get(svc.Key) == nil {
			continue
		}
		for _, number := range numbers {
			if port := svc.Port(number); port != nil && !port.Protocol.IsHTTP() {
				out.Add(s, r, svc.Key, number)
			}
		}
	}
	return out.List()
}

// TimeoutsIn returns the timeouts of a list.
func TimeoutsIn(timeouts TimeoutList) PortTimeouts {
	out := make(PortTimeouts)
	for t := range timeouts.All {
		out[t.port] = t.timeouts
	}
	return out
}
