package proxystatus

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// RootStep is the requirement of a step in the replacement of a root. Roots are named
// by their SHA-256.
type RootStep struct {
	// Trusted is the root that every proxy must trust.
	Trusted string
	// Gone is the root that no certificate may lead to; empty if there is none. Without
	// Gone, certificates issued after Since prove that the proxy trusts Trusted, as both
	// came together.
	Gone  string
	Since time.Time
}

// Readiness counts the connected proxies by whether they meet a RootStep.
type Readiness struct {
	// Proxies counts all, Ready those that meet it, Unknown those without information.
	Proxies int `json:"proxies"`
	Ready   int `json:"ready"`
	Unknown int `json:"unknown"`
	// Behind are the proxies that the step would break, sorted by name.
	Behind []Behind `json:"behind"`
}

// Behind is a proxy that a step would break, and why.
type Behind struct {
	Proxy   string         `json:"proxy"`
	Cluster mesh.ClusterID `json:"cluster"`
	Why     string         `json:"why"`
}

// Judge returns the readiness of the proxies of all reports at a time. A proxy with
// several streams, such as its agent's, counts once: by its newest certificate, and by
// the roots that any stream accepted.
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
	compare := func(a, b key) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.identity, b.identity))
	}
	for _, k := range slices.SortedFunc(maps.Keys(proxies), compare) {
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

// known holds the information about one proxy.
type known struct {
	certificate       *mesh.ClientCertificate // the newest
	hasRoots, trusted bool                    // roots of the mesh are known, the required one among them
}

func (k *known) add(p *Proxy, trusted string) {
	if c := p.Certificate; c != nil && (k.certificate == nil || c.From.After(k.certificate.From)) {
		k.certificate = c
	}
	k.hasRoots = k.hasRoots || len(p.Roots) > 0
	k.trusted = k.trusted || slices.Contains(p.Roots, trusted)
}

// judge returns why the step would break a proxy, or whether it is known not to.
func (s *RootStep) judge(k *known, now time.Time) (why string, ready bool) {
	if k.hasRoots && !k.trusted {
		return "its agent accepted roots of the mesh without the one that it must trust", false
	}
	c := k.certificate
	if c != nil && !now.Before(c.Until) {
		c = nil // expired: its certificate now is not known
	}
	if s.Gone != "" {
		if c == nil {
			return "", false
		}
		if !slices.ContainsFunc(c.Roots, func(root string) bool { return root != s.Gone }) {
			return "its certificate leads to the root that will be dropped, until " + stamp(c.Until), false
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
