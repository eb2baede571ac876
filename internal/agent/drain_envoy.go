package agent

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/agent/config"
)

// Waiting for the end of all connections.
const (
	connectionsPeriod = time.Second
	// maxConnectionErrors is how often in a row Envoy may not report its connections.
	maxConnectionErrors = 5
)

// drainEnvoy drains Envoy until its connections may be cut, it ends, or the agent is asked to
// end at once. It returns at once if Envoy has drained before.
func drainEnvoy(ctx context.Context, cfg *config.Config, log *slog.Logger, c *control, ended <-chan struct{}) {
	if c.drained.Load() {
		log.Info("envoy has drained before")
		return
	}
	if err := c.admin.drain(ctx, ""); err != nil {
		log.Warn("envoy does not drain; connections will be cut", "error", err)
		return
	}
	// sleep reports whether to go on.
	sleep := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-ended:
		case <-c.quit:
		}
		return false
	}
	if !cfg.ExitOnZeroConnections {
		log.Info("draining envoy", "for", cfg.TerminationDrain.String())
		sleep(cfg.TerminationDrain)
		return
	}
	log.Info("draining envoy until it has no connection", "at_least", cfg.MinimumDrain.String())
	failures, reported := 0, -1
	for wait := cfg.MinimumDrain; sleep(wait); wait = connectionsPeriod {
		n, err := c.admin.connections(ctx, cfg)
		switch {
		case err != nil:
			if failures++; failures >= maxConnectionErrors {
				log.Warn("envoy does not report its connections; they will be cut", "error", err)
				return
			}
			continue
		case n == 0:
			log.Info("no connection is left")
			return
		case n != reported:
			log.Info("connections are left", "number", n)
		}
		failures, reported = 0, n
	}
}

// connections returns the number of open connections to the listeners of the workload.
func (a *adminClient) connections(ctx context.Context, cfg *config.Config) (int, error) {
	body, err := a.do(ctx, http.MethodGet, "/stats?usedonly&filter="+url.QueryEscape(`^listener\..*downstream_cx_active$`))
	if err != nil {
		return 0, err
	}
	return countConnections(parseStats(body), ownListeners(cfg)), nil
}

// ownListeners returns the names, in statistics, of the listeners of the proxy itself.
func ownListeners(cfg *config.Config) []string {
	var own []string
	for _, port := range []uint16{cfg.ReadyPort, cfg.StatsPort} {
		for _, at := range []netip.Addr{cfg.Listen, netip.IPv6Unspecified()} {
			own = append(own, statName(at.String())+"_"+strconv.Itoa(int(port)))
		}
	}
	return own
}

// statName returns the form that an address has in the names of Envoy's statistics.
func statName(address string) string {
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return strings.ReplaceAll(address, ":", "_")
}

// countConnections adds up the connections of listeners, without the admin interface, the
// internal listeners and the listeners own of the proxy itself.
func countConnections(stats map[string]uint64, own []string) int {
	total := 0
	for name, n := range stats {
		listener, ok := strings.CutSuffix(name, ".downstream_cx_active")
		listener, isListener := strings.CutPrefix(listener, "listener.")
		if !ok || !isListener || listener == "admin" || strings.HasPrefix(listener, "admin.") ||
			strings.HasPrefix(listener, "envoy_internal_") || strings.Contains(listener, ".worker_") {
			continue
		}
		if !slices.Contains(own, listener) {
			total += int(n)
		}
	}
	return total
}
