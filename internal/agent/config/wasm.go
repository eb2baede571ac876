package config

import (
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/agent/wasm"
)

// Defaults of Istio's agent.
const (
	defaultModuleExpiry  = "24h"
	defaultModulePurge   = "1h"
	defaultModuleTimeout = "15s"
)

// modules resolves how the agent fetches the modules of WasmPlugins.
func (r *resolver) modules(cfg *Config) {
	if cfg.NoEnvoy || cfg.Direct {
		return
	}
	cfg.Modules = &wasm.Config{
		Dir:             filepath.Join(cfg.ConfigPath, "wasm"),
		CredentialsFile: r.lookup("WASM_REGISTRY_CREDENTIALS"),
		Expiry:          r.moduleTime("WASM_MODULE_EXPIRY", defaultModuleExpiry),
		Purge:           r.moduleTime("WASM_PURGE_INTERVAL", defaultModulePurge),
		Timeout:         r.moduleTime("WASM_HTTP_REQUEST_TIMEOUT", defaultModuleTimeout),
	}
	for host := range strings.SplitSeq(r.lookup("WASM_INSECURE_REGISTRIES"), ",") {
		host = strings.TrimSpace(host)
		switch {
		case host == "":
		case strings.ContainsAny(host, "/ "):
			r.errorf("WASM_INSECURE_REGISTRIES: %q is not host:port", host)
		default:
			cfg.Modules.Insecure = append(cfg.Modules.Insecure, host)
		}
	}
	for text := range strings.SplitSeq(r.lookup("BLOCKED_CIDRS_IN_WASM_FETCH"), ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		network, err := netip.ParsePrefix(text)
		if err != nil { // what is not blocked could be fetched
			r.errorf("BLOCKED_CIDRS_IN_WASM_FETCH: %q is not a range of addresses, such as 10.0.0.0/8", text)
		}
		cfg.Modules.Blocked = append(cfg.Modules.Blocked, network.Masked())
	}
}

// moduleTime returns the duration of a variable, which is positive.
func (r *resolver) moduleTime(variable, def string) time.Duration {
	s := setting{r.lookup(variable), variable}
	if s.value == "" {
		s.value = def
	}
	d, err := time.ParseDuration(s.value)
	if err != nil || d < time.Second || d > 30*24*time.Hour {
		r.errorf("%s=%q is not a duration from 1s to 720h, such as %s", variable, s.value, def)
	}
	return d
}
