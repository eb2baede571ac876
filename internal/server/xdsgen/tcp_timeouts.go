package xdsgen

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
)

// timeoutRules finds the timeouts of TCP connections in the DestinationRules of a client.
// It is zero if no rule sets any, so that clients share listeners.
type timeoutRules struct {
	used   bool
	client snapshot.RuleClient
}

func timeoutRulesOf(s *snapshot.Snapshot, client snapshot.RuleClient) timeoutRules {
	if !s.RuleTraits.Timeouts {
		return timeoutRules{}
	}
	return timeoutRules{true, client}
}

// reads returns the facts that decide about timeouts.
func (r timeoutRules) reads() snapshot.Kinds {
	if r.used {
		return snapshot.RuleFacts
	}
	return 0
}

// tcpTimeouts ends connections to a port of a service.
type tcpTimeouts struct {
	Idle    time.Duration // 0 means no limit
	HasIdle bool          // otherwise Envoy's default applies
	Max     time.Duration
}

func timeoutsOf(tcp *networkingv1alpha3.ConnectionPoolSettings_TCPSettings) tcpTimeouts {
	idle := tcp.GetIdleTimeout()
	return tcpTimeouts{Idle: idle.AsDuration(), HasIdle: idle != nil, Max: tcp.GetMaxConnectionDuration().AsDuration()}
}

func setsTimeouts(tcp *networkingv1alpha3.ConnectionPoolSettings_TCPSettings) bool {
	return tcp.GetIdleTimeout() != nil || tcp.GetMaxConnectionDuration() != nil
}

func (t tcpTimeouts) set(p *tcpv3.TcpProxy) {
	if t.HasIdle {
		p.IdleTimeout = durationpb.New(t.Idle)
	}
	if t.Max > 0 {
		p.MaxDownstreamConnectionDuration = durationpb.New(t.Max)
	}
}

// portTimeouts holds the timeouts of services. Most have none.
type portTimeouts map[servicePort]tcpTimeouts

// servicePort is a port of the service with a key.
type servicePort struct {
	service string
	number  uint32
}

func (p servicePort) compare(other servicePort) int {
	return cmp.Or(cmp.Compare(p.service, other.service), cmp.Compare(p.number, other.number))
}

func (p portTimeouts) of(svc *snapshot.MeshService, number uint32) tcpTimeouts {
	return p[servicePort{svc.Key, number}]
}

// add adds the timeouts of a port of the service with a key, if it has any.
func (p portTimeouts) add(s *snapshot.Snapshot, r timeoutRules, key string, number uint32) {
	tcp := s.Rules.Get(key).For(r.client).PolicyOver(s.Mesh.DefaultPolicy, number, nil).GetConnectionPool().GetTcp()
	if setsTimeouts(tcp) {
		p[servicePort{key, number}] = timeoutsOf(tcp)
	}
}

// timeoutList holds portTimeouts in a comparable form.
type timeoutList = list[portTimeout]

type portTimeout struct {
	port     servicePort
	timeouts tcpTimeouts
}

func (p portTimeouts) list() timeoutList {
	out := make([]portTimeout, 0, len(p))
	for _, port := range slices.SortedFunc(maps.Keys(p), servicePort.compare) {
		out = append(out, portTimeout{port, p[port]})
	}
	return listOf(out)
}

// of returns the timeouts of ports that have not HTTP.
func (r timeoutRules) of(s *snapshot.Snapshot, services iter.Seq[*snapshot.MeshService], numbers ...uint32) (none timeoutList) {
	if !r.used {
		return none
	}
	out := make(portTimeouts)
	for svc := range services {
		if s.Mesh.DefaultPolicy == nil && s.Rules.Get(svc.Key) == nil {
			continue
		}
		for _, number := range numbers {
			if port := svc.Port(number); port != nil && !port.Protocol.IsHTTP() {
				out.add(s, r, svc.Key, number)
			}
		}
	}
	return out.list()
}

// timeoutsIn returns the timeouts of a list.
func timeoutsIn(timeouts timeoutList) portTimeouts {
	out := make(portTimeouts)
	for t := range timeouts.All {
		out[t.port] = t.timeouts
	}
	return out
}
