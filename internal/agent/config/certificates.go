package config

import (
	"cmp"
	"strconv"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxysettings"
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
	if f.RootCA == proxysettings.SystemRoots {
		r.errorf("--root-ca=%s (the roots of the operating system) is not supported: name a PEM file", f.RootCA)
	}
	cfg.SecretTTL = r.durationOf("SECRET_TTL", defaultSecretTTL)
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

func (r *resolver) ratio(variable string, def float64) float64 {
	ratio, err := strconv.ParseFloat(r.lookup(variable), 64)
	if err != nil {
		return def
	}
	return ratio
}
