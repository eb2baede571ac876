package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// terminate makes the proxy not ready for good.
func (s *statusServer) terminate() { s.terminating.Store(true) }

func (s *statusServer) ready(w http.ResponseWriter, r *http.Request) {
	err := s.check(r.Context())
	if err == nil {
		s.log.Debug("ready")
		s.wasReady.Do(func() { s.startup.Set(s.now().Sub(s.began).Seconds()) })
		s.lastReason.Store("")
		w.WriteHeader(http.StatusOK)
		return
	}
	if s.lastReason.Swap(err.Error()) != err.Error() {
		s.log.Warn("not ready", "reason", err)
	}
	http.Error(w, "", http.StatusServiceUnavailable)
}

// readyStats selects what check reads of Envoy's statistics.
const readyStats = `^(cluster_manager\.cds|listener_manager\.lds)\.(update_success|update_rejected)$` +
	`|^server\.state$|^listener_manager\.workers_started$`

// check returns why the proxy is not ready, or nil. A proxy is ready when Envoy has clusters
// and listeners from the control plane, is live, and its workers run.
func (s *statusServer) check(ctx context.Context) error {
	if s.terminating.Load() {
		return errors.New("the agent is ending")
	}
	if c := s.cert(); c.Certificate == nil && !s.otherCert {
		if c.Err != nil {
			return fmt.Errorf("no certificate yet: %w", c.Err)
		}
		return errors.New("no certificate yet")
	}
	if s.names != nil {
		if err := s.names.Ready(); err != nil {
			return err
		}
	}
	if s.admin == nil { // no Envoy: the files of applications were written with the certificate
		return nil
	}
	body, err := s.admin.do(ctx, http.MethodGet, "/stats?usedonly&filter="+url.QueryEscape(readyStats))
	if err != nil {
		return fmt.Errorf("failed to get readiness stats: %w", err)
	}
	stats := parseStats(body)
	if err := s.checkConfigured(stats); err != nil {
		return err
	}
	if state, known := stats["server.state"]; !known || state != 0 {
		return fmt.Errorf("server is not live, current state is: %s", serverState(state, known))
	}
	if stats["listener_manager.workers_started"] != 1 {
		return errors.New("workers have not yet started")
	}
	return nil
}

// checkConfigured passes for ever once it has passed: a control plane that goes away later
// must not take proxies out of service.
func (s *statusServer) checkConfigured(stats map[string]uint64) error {
	if s.configured.Load() {
		return nil
	}
	cds, cdsBad := stats["cluster_manager.cds.update_success"], stats["cluster_manager.cds.update_rejected"]
	lds, ldsBad := stats["listener_manager.lds.update_success"], stats["listener_manager.lds.update_rejected"]
	counts := fmt.Sprintf("cds updates: %d successful, %d rejected; lds updates: %d successful, %d rejected", cds, cdsBad, lds, ldsBad)
	switch {
	case cds > 0 && lds > 0:
		s.configured.Store(true)
		return nil
	case cds+cdsBad+lds+ldsBad == 0:
		return fmt.Errorf("config not received from XDS server (is the control plane running?): %s", counts)
	case cdsBad+ldsBad > 0:
		return fmt.Errorf("config received from XDS server, but was rejected: %s", counts)
	}
	return fmt.Errorf("config not fully received from XDS server: %s", counts)
}

func serverState(state uint64, known bool) string {
	names := []string{"LIVE", "DRAINING", "PRE_INITIALIZING", "INITIALIZING"}
	if !known || state >= uint64(len(names)) {
		return "unknown"
	}
	return names[state]
}

// parseStats reads lines of the form "name: number" and skips all other lines.
func parseStats(body string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(body) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			out[name] = n
		}
	}
	return out
}
