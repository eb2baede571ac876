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

// encode returns the timeouts of ports that have not HTTP, in a comparable form.
func (r timeoutRules) encode(s *snapshot.Snapshot, services iter.Seq[*snapshot.MeshService], numbers ...uint32) string {
	if !r.used {
		return ""
	}
	out := make(portTimeouts)
	for svc := range services {
		rule := s.Rules.Get(svc.Key).For(r.client)
		if rule == nil && s.Mesh.DefaultPolicy == nil {
			continue
		}
		for _, number := range numbers {
			port := svc.Port(number)
			tcp := rule.PolicyOver(s.Mesh.DefaultPolicy, number, nil).GetConnectionPool().GetTcp()
			if port == nil || port.Protocol.IsHTTP() || tcp.GetIdleTimeout() == nil && tcp.GetMaxConnectionDuration() == nil {
				continue
			}
			if out[svc.Key] == nil {
				out[svc.Key] = make(map[uint32]tcpTimeouts)
			}
			out[svc.Key][number] = timeoutsOf(tcp)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return encodeFacts(out)
}

func decodeTimeouts(encoded string) (out portTimeouts) {
	if encoded != "" {
		decodeFacts(encoded, &out)
	}
	return out
}
