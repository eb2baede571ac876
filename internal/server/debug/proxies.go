package debug

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// proxies makes the page xds/proxies: the state of each stream and type.
func (p *Pages) proxies(context.Context, Query) (any, error) {
	name, _, _ := strings.Cut(p.cfg.Replica, "_") // Kubernetes names have no underscore
	report := proxystatus.Report{Replica: name, Hints: p.cfg.Hints(), Proxies: []proxystatus.Proxy{}}
	streams, accepted := p.cfg.Proxies(), p.cfg.Accepted(xdswire.ProxyConfigType)
	report.At = p.cfg.Now()                      // after all that the report contains
	seen := make(map[*xdswire.Resource][]string) // most proxies have the same
	for i := range streams {
		proxy := proxyStatus(&streams[i], report.At)
		for _, r := range accepted[proxy.Stream] {
			if _, known := seen[r]; !known {
				seen[r] = p.rootsIn(r)
			}
			proxy.Roots = seen[r] // there is one resource of the type
		}
		report.Proxies = append(report.Proxies, proxy)
	}
	report.Sort()
	return report, nil
}

// rootsIn returns the fingerprints of the roots in a resource for agents.
func (p *Pages) rootsIn(r *xdswire.Resource) []string {
	list, err := units.RootsIn(r)
	var out []string
	for _, text := range list {
		parsed, bad := certs.ParseCerts([]byte(text))
		err = cmp.Or(err, bad)
		for _, c := range parsed {
			out = append(out, certs.Fingerprint(c))
		}
	}
	if err != nil {
		p.cfg.Log.Error("the roots that agents accepted cannot be read", "error", err)
		return nil
	}
	slices.Sort(out)
	return out
}

func proxyStatus(p *history.Proxy, now time.Time) proxystatus.Proxy {
	out := proxystatus.Proxy{
		Name: p.Node.ID.ProxyID(), Namespace: p.Node.ID.Namespace, Stream: p.ID,
		Cluster: string(p.Node.Cluster), Network: string(p.Node.Network), Kind: string(p.Node.ID.Type),
		Version: p.Node.Version, Envoy: p.Node.Envoy, Certificate: p.Certificate, Variant: p.Variant.String(), Connected: p.Connected,
		Types: []proxystatus.Type{},
	}
	if p.Caller.Identity != (mesh.Identity{}) {
		out.Identity = p.Caller.Identity.String()
	}
	for _, url := range xdswire.PushOrder {
		if t, ok := p.Types[xdswire.ShortType(url)]; ok {
			out.Types = append(out.Types, typeStatus(url, &t, now))
		}
	}
	return out
}

func typeStatus(url string, t *history.TypeStatus, now time.Time) proxystatus.Type {
	out := proxystatus.Type{
		Type: xdswire.ShortType(url), URL: url, Sent: t.Sent, Acked: t.Acked,
		SentAt: t.SentAt, AnsweredAt: t.AnsweredAt, State: stateOf(t),
	}
	for i := range t.Quarantined {
		out.Refused = append(out.Refused, t.Quarantined[i].Resource)
	}
	switch more := len(t.Quarantined) - 1; {
	case t.NACK != nil:
		out.Error = t.NACK.Message
	case more > 0:
		out.Error = fmt.Sprintf("left without %s and %d more: %s", t.Quarantined[0].Resource, more, t.Quarantined[0].Error)
	case more == 0:
		out.Error = fmt.Sprintf("left without %s: %s", t.Quarantined[0].Resource, t.Quarantined[0].Error)
	}
	if t.Awaited {
		out.Lag = proxystatus.Lag(max(now.Sub(t.SentAt), 0))
	}
	return out
}
