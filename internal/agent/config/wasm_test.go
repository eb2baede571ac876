package config

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestModules(t *testing.T) {
	cfg := resolve(t, Flags{}, "WASM_INSECURE_REGISTRIES=a.example:5000, b", "WASM_REGISTRY_CREDENTIALS=/c.json", "WASM_MODULE_EXPIRY=2h")
	m := cfg.Modules
	if !slices.Equal(m.Insecure, []string{"a.example:5000", "b"}) || m.CredentialsFile != "/c.json" || m.Expiry != 2*time.Hour ||
		m.Purge != time.Hour || m.Timeout != 15*time.Second || m.Dir != "etc/istio/proxy/wasm" {
		t.Errorf("%+v", m)
	}
	if cfg := resolve(t, Flags{NoRelay: "true"}); cfg.Modules != nil {
		t.Error("modules are fetched without a relay")
	}
	for variable, want := range map[string]string{
		"WASM_MODULE_EXPIRY=never": "is not a duration", "WASM_HTTP_REQUEST_TIMEOUT=0s": "is not a duration",
		"WASM_PURGE_INTERVAL=-1h": "is not a duration", "WASM_INSECURE_REGISTRIES=https://a": "is not host:port",
	} {
		name, _, _ := strings.Cut(variable, "=")
		if _, _, err := Resolve(Input{Environ: append(base(), variable)}); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", variable, err)
		}
	}
}

func TestCustomConfigFile(t *testing.T) {
	const custom = "PROXY_CONFIG={customConfigFile: /etc/custom.yaml}"
	if cfg := resolve(t, Flags{}, custom); cfg.CustomConfigFile != "/etc/custom.yaml" {
		t.Errorf("%q", cfg.CustomConfigFile)
	}
	if _, _, err := Resolve(Input{Environ: append(base(), custom, "ISTIO_BOOTSTRAP_OVERRIDE=x")}); err == nil || !strings.Contains(err.Error(), "are both set") {
		t.Errorf("error %v", err)
	}
}
