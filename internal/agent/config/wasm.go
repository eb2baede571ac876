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
	defaultModuleExpiry  = 24 * time.Hour
	defaultModulePurge   = time.Hour
	defaultModuleTimeout = 15 * time.Second
)

// modules resolves how the agent fetches the modules of WasmPlugins.
func (r *resolver) modules(cfg *Config) {
	if cfg.NoEnvoy || cfg.Direct {
		return
	}
	cfg.Modules = &wasm.Config{
		Dir:             filepath.Join(cfg.ConfigPath, "wasm"),
		CredentialsFile: r.lookup("WASM_REGISTRY_CREDENTIALS"),
		Expiry:          r.durationOf("WASM_MODULE_EXPIRY", defaultModuleExpiry),
		Purge:           r.durationOf("WASM_PURGE_INTERVAL", defaultModulePurge),
		Timeout:         r.durationOf("WASM_HTTP_REQUEST_TIMEOUT", defaultModuleTimeout),
	}
	for host := range strings.SplitSeq(r.lookup("WASM_INSECURE_REGISTRIES"), ",") {
		if host = strings.TrimSpace(host); host != "" {
			cfg.Modules.Insecure = append(cfg.Modules.Insecure, host)
		}
	}
	for text := range strings.SplitSeq(r.lookup("BLOCKED_CIDRS_IN_WASM_FETCH"), ",") {
		if network, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil { // faults are reported
			cfg.Modules.Blocked = append(cfg.Modules.Blocked, network.Masked())
		}
	}
}
