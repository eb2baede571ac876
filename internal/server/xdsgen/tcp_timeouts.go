package xdsgen

import (
	"iter"
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
	Idle *time.Duration `json:",omitempty"` // 0 means no limit, nil Envoy's default
	Max  time.Duration  `json:",omitempty"`
}

func timeoutsOf(tcp *networkingv1alpha3.ConnectionPoolSettings_TCPSettings) tcpTimeouts {
	t := tcpTimeouts{Max: tcp.GetMaxConnectionDuration().AsDuration()}
	if d := tcp.GetIdleTimeout(); d != nil {
		idle := d.AsDuration()
		t.Idle = &idle
	}
	return t
}

func setsTimeouts(tcp *networkingv1alpha3.ConnectionPoolSettings_TCPSettings) bool {
	return tcp.GetIdleTimeout() != nil || tcp.GetMaxConnectionDuration() != nil
}

func (t tcpTimeouts) set(p *tcpv3.TcpProxy) {
	if t.Idle != nil {
		p.IdleTimeout = durationpb.New(*t.Idle)
	}
	if t.Max > 0 {
		p.MaxDownstreamConnectionDuration = durationpb.New(t.Max)
	}
}

// portTimeouts holds the timeouts of services by key and port. Most have none.
type portTimeouts map[string]map[uint32]tcpTimeouts

func (p portTimeouts) of(svc *snapshot.MeshService, number uint32) tcpTimeouts {
	return p[svc.Key][number]
}

// add adds the timeouts of a port of the service with a key, if it has any.
func (p portTimeouts) add(s *snapshot.Snapshot, r timeoutRules, key string, number uint32) {
	tcp := s.Rules.Get(key).For(r.client).PolicyOver(s.Mesh.DefaultPolicy, number, nil).GetConnectionPool().GetTcp()
	if !setsTimeouts(tcp) {
		return
	}
	if p[key] == nil {
		p[key] = make(map[uint32]tcpTimeouts)
	}
	p[key][number] = timeoutsOf(tcp)
}

// encoded returns the timeouts in a comparable form.
func (p portTimeouts) encoded() string {
	if len(p) == 0 {
		return ""
	}
	return encodeFacts(p)
}

// encode returns the timeouts of ports that have not HTTP, in a comparable form.
func (r timeoutRules) encode(s *snapshot.Snapshot, services iter.Seq[*snapshot.MeshService], numbers ...uint32) string {
	if !r.used {
		return ""
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
	return out.encoded()
}

func decodeTimeouts(encoded string) (out portTimeouts) {
	if encoded != "" {
		decodeFacts(encoded, &out)
	}
	return out
}
