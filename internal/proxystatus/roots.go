package proxystatus

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// RootStep is what a step in the replacement of a root requires of proxies.
// Roots are named by their SHA-256.
type RootStep struct {
	// Trusted is the root that every proxy has to trust.
	Trusted string
	// Gone is the root to which no certificate may lead any more; empty when it
	// does not matter. Only then Since counts: certificates issued since came
	// together with Trusted.
	Gone  string
	Since time.Time
}

// Readiness is how far connected proxies are for a RootStep.
type Readiness struct {
	// Proxies counts all, Ready those that are known to have what it takes, Unknown
	// those of which nothing is known.
	Proxies int `json:"proxies"`
	Ready   int `json:"ready"`
	Unknown int `json:"unknown"`
	// Behind are the others, whom the step would break, sorted by name.
	Behind []Behind `json:"behind"`
}

// Behind is a proxy that a step would break, and why.
type Behind struct {
	Proxy   string         `json:"proxy"`
	Cluster mesh.ClusterID `json:"cluster"`
	Why     string         `json:"why"`
}

// Judge says how far the proxies of all reports are, at a time. A proxy with several
// streams, such as that of its agent or one that it had before, is told of once: the
// newest certificate counts, and the roots that any stream accepted.
func (s *RootStep) Judge(reports []Report, now time.Time) Readiness {
	type key struct{ cluster, name, identity string }
	proxies := make(map[key]*known)
	for _, r := range reports {
		for i := range r.Proxies {
			p := &r.Proxies[i]
			k := key{p.Cluster, p.Name, p.Identity}
			if proxies[k] == nil {
				proxies[k] = &known{}
			}
			proxies[k].add(p, s.Trusted)
		}
	}
	out := Readiness{Proxies: len(proxies), Behind: []Behind{}}
	order := func(a, b key) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.identity, b.identity))
	}
	for _, k := range slices.SortedFunc(maps.Keys(proxies), order) {
		switch why, ready := s.judge(proxies[k], now); {
		case why != "":
			out.Behind = append(out.Behind, Behind{k.name, mesh.ClusterID(k.cluster), why})
		case ready:
			out.Ready++
		default:
			out.Unknown++
		}
	}
	return out
}

// known is what is known of one proxy.
type known struct {
	certificate   *mesh.ClientCertificate // the newest
	told, trusted bool                    // it was told of roots, and the one to be trusted was among them
}

func (k *known) add(p *Proxy, trusted string) {
	if c := p.Certificate; c != nil && (k.certificate == nil || c.From.After(k.certificate.From)) {
		k.certificate = c
	}
	k.told = k.told || len(p.Roots) > 0
	k.trusted = k.trusted || slices.Contains(p.Roots, trusted)
}

// judge says why the step would break a proxy; else whether it is known not to.
func (s *RootStep) judge(k *known, now time.Time) (why string, ready bool) {
	if k.told && !k.trusted {
		return "its agent was told of the roots of the mesh and accepted them, without the one that has to be trusted", false
	}
	c := k.certificate
	if c != nil && !now.Before(c.Until) {
		c = nil // what it has now is not known
	}
	if s.Gone != "" {
		if c == nil {
			return "", false
		}
		if !slices.ContainsFunc(c.Roots, func(root string) bool { return root != s.Gone }) {
			return "its certificate leads to the root that is to be dropped, until " + stamp(c.Until), false
		}
		return "", true
	}
	switch {
	case k.trusted:
		return "", true
	case c == nil:
		return "", false
	case c.From.Add(certs.Backdate).Before(s.Since):
		return "its certificate, and the roots that came with it, are of " + stamp(c.From.Add(certs.Backdate)) + ", valid until " + stamp(c.Until), false
	}
	return "", true
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
