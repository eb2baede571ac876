package server

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/trust"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// peerTrust joins what vouches for callers and peers, trust domain by trust domain:
//
//   - the own one has the roots of the signing CA, and those that are added to it;
//   - one that MeshConfig or a flag names a source for has the roots of that
//     source, and none while there are none;
//   - an alias without a source is the own one by another name.
//
// It may be used concurrently.
type peerTrust struct {
	log     *slog.Logger
	bundles *trust.Federation
	// changed has a token while callers are to be checked anew. Capacity 1.
	changed chan struct{}

	mu      sync.RWMutex // guards what follows
	ca      *ca.Set
	own     string // trust domain
	aliases []string
	pools   map[string]*x509.CertPool
	others  map[string]bool // trust domains with sources, but the own one
	peers   *xds.Trust      // nil while there are lists that proxies cannot use
	bundle  []string        // the own roots as snapshot.TrustBundle has them
	publish func(roots []string)
}

func (s *Server) newTrust() (err error) {
	s.trust = &peerTrust{log: s.cfg.log(logAuthn), own: s.cfg.TrustDomain, changed: make(chan struct{}, 1)}
	fetches := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "meshctl_trust_bundle_fetches_total", Help: "Looks at the sources of trust bundles, by result: ok or refused.",
	}, []string{"trust_domain", "result"})
	s.metrics.MustRegister(fetches)
	kept := ""
	if s.cfg.StateDir != "" {
		kept = filepath.Join(s.cfg.StateDir, "bundles")
	}
	s.bundles, err = trust.New(trust.Config{
		Sources: s.cfg.Federated, Dir: kept, WebRoots: s.cfg.BundleWebRoots,
		Guard:   dial.Guard{Loopback: !s.cfg.InPod},
		Changed: s.trust.gather,
		Fetched: func(td string, ok bool) {
			result := "refused"
			if ok {
				result = "ok"
			}
			fetches.WithLabelValues(td, result).Inc()
		},
		Now: s.cfg.Now, Log: s.cfg.log(logAuthn),
	})
	if err != nil {
		return fmt.Errorf("federation: %w", err)
	}
	s.trust.bundles = s.bundles
	s.metrics.MustRegister(bundleMetrics{s.bundles})
	return nil
}

// setCA trusts what a set of the signing CA leads to.
func (t *peerTrust) setCA(set *ca.Set) {
	t.mu.Lock()
	t.ca = set
	t.mu.Unlock()
	t.gather()
}

// setMesh trusts what MeshConfig says.
func (t *peerTrust) setMesh(m *snapshot.Mesh) {
	t.mu.Lock()
	same := t.own == m.TrustDomain && slices.Equal(t.aliases, m.Aliases)
	t.own, t.aliases = m.TrustDomain, m.Aliases
	t.mu.Unlock()
	t.bundles.Set(sourcesOf(m.CACertificates)) // which gathers, if they are others
	if !same {
		t.gather()
	}
}

// sourcesOf are those that MeshConfig names.
func sourcesOf(list []snapshot.CACertificate) []trust.Source {
	var out []trust.Source
	for _, c := range list {
		s := trust.Source{PEM: c.PEM, URL: c.BundleURL, Via: "caCertificates of MeshConfig"}
		if len(c.TrustDomains) == 0 {
			out = append(out, s)
		}
		for _, td := range c.TrustDomains {
			s.TrustDomain = td
			out = append(out, s)
		}
	}
	return out
}

// gather makes the pools anew.
func (t *peerTrust) gather() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ca == nil {
		return
	}
	named := t.bundles.Domains()
	extra := append(named[""], named[t.own]...)
	delete(named, "")
	delete(named, t.own)
	own := t.ca.Pool
	all := append(slices.Clip(t.ca.Roots), extra...)
	if len(extra) > 0 {
		own = certs.Pool(all)
	}
	t.pools, t.others = map[string]*x509.CertPool{t.own: own}, map[string]bool{}
	for td, roots := range named {
		t.others[td] = true
		if len(roots) > 0 {
			t.pools[td] = certs.Pool(roots)
		}
	}
	for _, alias := range t.aliases {
		if !t.others[alias] {
			t.pools[alias] = own
		}
	}
	t.setPeers()
	t.setBundle(all)
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// publishTo has the roots of the mesh told to workloads, now and when they change.
func (t *peerTrust) publishTo(publish func(roots []string)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.publish = publish; t.bundle != nil {
		publish(t.bundle)
	}
}

// setBundle tells workloads what to check each other with: the roots of their
// own trust domain. Those of another could sign for theirs, if Envoy had them.
// It is called under the lock.
func (t *peerTrust) setBundle(roots []*x509.Certificate) {
	t.bundle = make([]string, len(roots))
	for i, r := range roots {
		t.bundle[i] = string(certs.EncodeCerts(r))
	}
	slices.Sort(t.bundle)
	if t.bundle = slices.Compact(t.bundle); t.publish != nil {
		t.publish(t.bundle)
	}
}

// setPeers makes what agents are given. It is called under the lock.
func (t *peerTrust) setPeers() {
	if t.ca.ForPeers.Withheld {
		t.peers = nil
		return
	}
	var err error
	if t.peers, err = xds.NewTrust(certs.EncodeCerts(t.ca.Roots...), []byte(t.ca.ForPeers.PEM)); err != nil {
		t.log.Error("agents are not told of roots and revocation lists", "error", err)
	}
}

// roots are what callers' certificates of a trust domain must lead to, nil when
// there are none.
func (t *peerTrust) roots(trustDomain string) *x509.CertPool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.pools[trustDomain]
}

// foreign reports whether another CA than ours vouches for a trust domain.
func (t *peerTrust) foreign(trustDomain string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.others[trustDomain]
}

// forPeers is what agents hand to their Envoys.
func (t *peerTrust) forPeers() (*xds.Trust, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.peers != nil {
		return t.peers, nil
	}
	return nil, errors.New("the revocation lists of the control plane cannot be used by proxies")
}

// bundleNotes are the bundles with a problem, a line each.
func (s *Server) bundleNotes() []string {
	var lines []string
	list := s.bundles.Status()
	for i := range list {
		if st := &list[i]; st.Problem != "" {
			td := st.TrustDomain
			if td == "" {
				td = "of the mesh"
			}
			lines = append(lines, fmt.Sprintf("trust bundle %s from %s: since %s: %s", td, st.Source, st.Since.Format(time.RFC3339),
				strings.ReplaceAll(st.Problem, "\n", "; ")))
		}
	}
	return bounded(lines, "trust bundles: see /debug/bundles")
}

// bundleMetrics tell how it stands with each source of a trust bundle.
type bundleMetrics struct{ bundles *trust.Federation }

// Describe tells nothing: the trust domains may change.
func (bundleMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. Of several sources of a trust domain
// the worst counts.
func (m bundleMetrics) Collect(out chan<- prometheus.Metric) {
	type worst struct{ problems, age, until float64 }
	domains := map[string]worst{}
	list := m.bundles.Status()
	for i := range list {
		st, w := &list[i], domains[list[i].TrustDomain]
		if st.Problem != "" {
			w.problems++
		}
		w.age = max(w.age, st.AgeSeconds)
		if until := float64(st.Until.Unix()); !st.Until.IsZero() && (w.until == 0 || until < w.until) {
			w.until = until
		}
		domains[st.TrustDomain] = w
	}
	gauge := func(name, help, td string, v float64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, []string{"trust_domain"}, nil), prometheus.GaugeValue, v, td)
	}
	for td, w := range domains {
		gauge("meshctl_trust_bundle_problems", "Sources of the trust domain's bundle that are not in use as they are.", td, w.problems)
		gauge("meshctl_trust_bundle_age_seconds", "How long ago the bundle's source was last found to be good.", td, w.age)
		gauge("meshctl_trust_bundle_expiry_timestamp", "When the bundle's last root ends, in seconds since 1970; 0 without a bundle.", td, w.until)
	}
}
