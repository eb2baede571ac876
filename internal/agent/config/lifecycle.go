package config

import (
	"cmp"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

const (
	exitOnZero          = "EXIT_ON_ZERO_ACTIVE_CONNECTIONS"
	minimumDrain        = "MINIMUM_DRAIN_DURATION"
	defaultMinimumDrain = 5 * time.Second
)

// agentMemory is the part of a container's memory that the heap of Envoy does not get, in
// bytes: for the agent, stacks and buffers of the kernel.
const agentMemory = 64 << 20

// lifecycle resolves the resources that Envoy may use, and how it ends.
func (r *resolver) lifecycle(cfg *Config, pc *meshv1alpha1.ProxyConfig, in *Input) {
	if pc.GetConcurrency() == nil {
		cfg.Concurrency = min(in.CPULimit, maxConcurrency)
	}
	cfg.MaxHeap = in.MemoryLimit / 2
	if in.MemoryLimit > 2*agentMemory {
		cfg.MaxHeap = in.MemoryLimit - agentMemory
	}
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
