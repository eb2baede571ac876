package config

import (
	"cmp"
	"time"
)

const (
	exitOnZero          = "EXIT_ON_ZERO_ACTIVE_CONNECTIONS"
	minimumDrain        = "MINIMUM_DRAIN_DURATION"
	defaultMinimumDrain = 5 * time.Second
)

// lifecycle resolves how Envoy ends.
func (r *resolver) lifecycle(cfg *Config) {
	cfg.ExitOnZeroConnections = r.boolean(setting{cmp.Or(r.lookup(exitOnZero), "false"), exitOnZero})
	if cfg.CountConnections = cfg.ExitOnZeroConnections; cfg.CountConnections {
		cfg.Metadata[exitOnZero] = "true"
	}
	cfg.MinimumDrain = r.durationOf(minimumDrain, defaultMinimumDrain)
}
