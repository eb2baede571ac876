package server

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/server/source/jwks"
)

// maxKeyFetch bounds a fetch of a key set; rules may have shorter timeouts.
const maxKeyFetch = 30 * time.Second

// newKeySets makes the fetcher of the key sets of RequestAuthentications, which their authors
// choose.
func (s *Server) newKeySets() error {
	guard := dial.Guard{Loopback: !s.cfg.InPod, Refused: s.cfg.KeyNetworksRefused}
	client, err := guard.Client(maxKeyFetch, dial.ServerTLS{Roots: s.cfg.OIDCRoots}, keyset.MaxSize)
	if err != nil {
		return fmt.Errorf("roots for servers of key sets: %w", err)
	}
	s.keyClient = client
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		s.metrics.MustRegister(c)
		return c
	}
	// Istio's names.
	good := counter("pilot_jwks_resolver_network_fetch_success_total", "Key sets of RequestAuthentications that were fetched.")
	bad := counter("pilot_jwks_resolver_network_fetch_fail_total", "Fetches of key sets of RequestAuthentications that failed.")
	saved := ""
	if s.cfg.StateDir != "" {
		saved = filepath.Join(s.cfg.StateDir, "keysets")
	}
	s.keySets = jwks.New(jwks.Config{
		Dir: saved,
		Get: jwks.Getter(client), Publish: s.registry.SetKeySets, Every: s.cfg.KeyRefresh,
		Fetched: func(ok bool) {
			if ok {
				good.Inc()
			} else {
				bad.Inc()
			}
		},
		Log:    s.cfg.log(logAuthn),
		Jitter: func(d time.Duration) time.Duration { return rand.N(d + 1) }, //nolint:gosec // spreads waits, guards nothing
		Now:    s.cfg.Now,
	})
	return nil
}

// keySetNotes returns the problems of key sets.
func (s *Server) keySetNotes() []string {
	var lines []string
	list := s.keySets.Status()
	for i := range list {
		st := &list[i]
		if st.Problem == "" {
			continue
		}
		consequence := "its tokens are refused"
		if st.Keys > 0 {
			consequence = "its last keys stay"
		}
		lines = append(lines, fmt.Sprintf("key set %s: since %s: %s: %s", st.Source, st.Since.Format(time.RFC3339), oneLine(st.Problem), consequence))
	}
	return bounded(lines, "key sets: see /debug/keysets")
}
