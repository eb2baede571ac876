package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// proxiesPage is /debug/xds/proxies: how far each stream is with each type.
func (s *Server) proxiesPage() proxystatus.Report {
	name, _, _ := strings.Cut(s.cfg.Replica, "_") // a name of Kubernetes has no underscore
	report := proxystatus.Report{Replica: name, Hints: s.configurationHints(), Proxies: []proxystatus.Proxy{}}
	streams, told := s.hub.Proxies(), s.hub.Accepted(xdswire.ProxyConfigType)
	report.At = s.cfg.Now()                      // after all that is told of
	seen := make(map[*xdswire.Resource][]string) // most have the same
	for i := range streams {
		p := proxyStatus(&streams[i], report.At)
		for _, r := range told[p.Stream] {
			if _, known := seen[r]; !known {
				seen[r] = s.rootsIn(r)
			}
			p.Roots = seen[r] // there is one resource of the type
		}
		report.Proxies = append(report.Proxies, p)
	}
	report.Sort()
	return report
}

// rootsIn are the fingerprints of the roots that a resource tells agents of.
func (s *Server) rootsIn(r *xdswire.Resource) []string {
	list, err := xdsgen.RootsIn(r)
	var out []string
	for _, text := range list {
		parsed, bad := certs.ParseCerts([]byte(text))
		err = cmp.Or(err, bad)
		for _, c := range parsed {
			out = append(out, certs.Fingerprint(c))
		}
	}
	if err != nil {
		s.cfg.Log.Error("the roots that agents accepted cannot be told", "error", err)
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
		SentAt: t.SentAt, AnsweredAt: t.AnsweredAt,
	}
	for i := range t.Quarantined {
		out.Refused = append(out.Refused, t.Quarantined[i].Resource)
	}
	switch {
	case t.NACK != nil:
		out.Error = t.NACK.Message
	case len(t.Quarantined) > 0:
		out.Error = fmt.Sprintf("left without %s: %s", t.Quarantined[0].Resource, t.Quarantined[0].Error)
		if more := len(t.Quarantined) - 1; more > 0 {
			out.Error = fmt.Sprintf("left without %s and %d more: %s", t.Quarantined[0].Resource, more, t.Quarantined[0].Error)
		}
	}
	if t.Awaited {
		out.Lag = proxystatus.Lag(max(now.Sub(t.SentAt), 0))
	}
	switch {
	case t.NACK != nil || len(t.Quarantined) > 0:
		out.State = proxystatus.Error
	case t.Sent == "":
		out.State = proxystatus.NotSent
	case t.Awaited:
		out.State = proxystatus.Stale
	default:
		out.State = proxystatus.Synced
	}
	return out
}
