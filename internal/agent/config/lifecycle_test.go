package config

import (
	"strings"
	"testing"
	"time"
)

func TestLifecycle(t *testing.T) {
	cfg := resolve(t, Flags{})
	if cfg.ExitOnZeroConnections || cfg.CountConnections || cfg.MinimumDrain != 5*time.Second || cfg.Metadata[exitOnZero] != nil {
		t.Errorf("defaults: %v %v %v %v", cfg.ExitOnZeroConnections, cfg.CountConnections, cfg.MinimumDrain, cfg.Metadata)
	}
	cfg = resolve(t, Flags{}, "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=7s")
	if !cfg.ExitOnZeroConnections || !cfg.CountConnections || cfg.MinimumDrain != 7*time.Second || cfg.Metadata[exitOnZero] != "true" {
		t.Errorf("got %v %v %v %v", cfg.ExitOnZeroConnections, cfg.CountConnections, cfg.MinimumDrain, cfg.Metadata)
	}
	for _, env := range []string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS=perhaps", "MINIMUM_DRAIN_DURATION=-1s", "MINIMUM_DRAIN_DURATION=5"} {
		name, _, _ := strings.Cut(env, "=")
		if _, _, err := Resolve(Input{Environ: append(base(), env)}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", env, err)
		}
	}
}

// TestLimits: Envoy gets the processors of its container, unless a setting has a number, and
// the memory that the agent leaves.
func TestLimits(t *testing.T) {
	for _, tc := range []struct {
		environ []string
		flag    int
		cpus    int
		want    int
	}{
		{nil, 0, 0, 0},
		{nil, 0, 3, 3},
		{[]string{"ISTIO_CPU_LIMIT=2"}, 0, 3, 2},
		{[]string{"PROXY_CONFIG=concurrency: 0"}, 0, 3, 0},
		{[]string{"PROXY_CONFIG=concurrency: 5", "ISTIO_CPU_LIMIT=2"}, 0, 3, 5},
		{[]string{"PROXY_CONFIG=concurrency: 5"}, 7, 3, 7},
	} {
		cfg, _, err := Resolve(Input{Environ: append(base(), tc.environ...), Flags: Flags{Concurrency: tc.flag}, CPULimit: tc.cpus})
		if err != nil || cfg.Concurrency != tc.want {
			t.Errorf("%v, flag %d, %d processors: %d, %v, want %d", tc.environ, tc.flag, tc.cpus, cfg.Concurrency, err, tc.want)
		}
	}
	for limit, want := range map[uint64]uint64{0: 0, 64 << 20: 32 << 20, 128 << 20: 64 << 20, 1 << 30: 960 << 20} {
		cfg, _, err := Resolve(Input{Environ: base(), MemoryLimit: limit})
		if err != nil || cfg.MaxHeap != want {
			t.Errorf("%d bytes of memory: a heap of %d, %v, want %d", limit, cfg.MaxHeap, err, want)
		}
	}
}
