package config

import (
	"cmp"
	"strconv"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// secrets resolves how the certificate is obtained and renewed.
func (r *resolver) secrets(cfg *Config) {
	f := r.flags
	cfg.TokenFile = cmp.Or(f.Token, DefaultTokenFile)
	cfg.CRLFile = cmp.Or(f.CRL, DefaultCRLFile)
	cfg.CARootFile = r.pick("root-ca", f.RootCA, "CA_ROOT_CA", DefaultRootFile).value
	if xds := r.lookup("XDS_ROOT_CA"); f.RootCA == "" && xds != cfg.CARootFile {
		cfg.XDSRootFile = xds
	}
	if cfg.CARootFile == systemRoots || cfg.XDSRootFile == systemRoots {
		r.errorf("CA_ROOT_CA, XDS_ROOT_CA: %s (the roots of the operating system) is not supported; name a PEM file", systemRoots)
	}

	cfg.SecretTTL = defaultSecretTTL
	if v := r.lookup("SECRET_TTL"); v != "" {
		ttl, err := time.ParseDuration(v)
		if err != nil || ttl < time.Second {
			r.errorf("SECRET_TTL=%q is not a duration of at least 1s, such as 24h", v)
		}
		cfg.SecretTTL = ttl
	}
	cfg.Grace = r.ratio("SECRET_GRACE_PERIOD_RATIO", defaultGrace)
	cfg.Jitter = r.ratio("SECRET_GRACE_PERIOD_RATIO_JITTER", defaultJitter)
}

// keyExchange resolves the key exchanges with the control plane. Istio's
// COMPLIANCE_POLICY=pqc means pqc-required.
func (r *resolver) keyExchange(cfg *Config) {
	kind, from := r.flags.KeyExchange, "--tls-key-exchange"
	if policy := r.lookup("COMPLIANCE_POLICY"); kind == "" && policy != "" {
		if policy != "pqc" {
			r.warnf("COMPLIANCE_POLICY=%q has no effect here, only pqc has", policy)
			return
		}
		kind, from = "pqc-required", "COMPLIANCE_POLICY"
	}
	var known bool
	if cfg.KeyExchanges, known = mesh.KeyExchanges(kind); !known {
		r.errorf("%s=%q: want pqc-preferred, pqc-required or classic", from, kind)
	}
}

// systemRoots is Istio's name for the roots of the operating system.
const systemRoots = "SYSTEM"

func (r *resolver) ratio(variable string, def float64) float64 {
	v := r.lookup(variable)
	if v == "" {
		return def
	}
	ratio, err := strconv.ParseFloat(v, 64)
	if err != nil || !(ratio >= 0 && ratio <= 1) {
		r.errorf("%s=%q is not a number from 0 to 1", variable, v)
	}
	return ratio
}
