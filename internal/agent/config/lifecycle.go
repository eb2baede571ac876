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
	cfg.MinimumDrain = defaultMinimumDrain
	if v := r.lookup(minimumDrain); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 || d > 24*time.Hour {
			r.errorf("%s=%q is not a duration from 0s to 24h, such as 5s", minimumDrain, v)
		}
		cfg.MinimumDrain = d
	}
}
