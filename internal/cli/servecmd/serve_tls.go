package servecmd

import (
	"crypto/tls"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server"
)

// serveTLSOptions hold the flags of the secure port.
type serveTLSOptions struct {
	minVersion, keyExchange string
}

func (o *serveTLSOptions) bind(f *pflag.FlagSet, cfg *server.Config) {
	cli.ChoiceVar(f, &o.minVersion, "tls-min-version", "Lowest TLS version of the secure port; 1.2 permits only ECDHE and AEAD ciphers", "1.3", "1.2")
	cli.MarkWeakening(f, "tls-min-version", "1.2")
	cli.ChoiceVar(f, &o.keyExchange, "tls-key-exchange", "Key exchange on the secure port; pqc is X25519MLKEM768", mesh.KeyExchangeChoices()...)
	cli.MarkWeakening(f, "tls-key-exchange", "classic")
	f.StringVar(&cfg.Own.Cert, "tls-cert-file", "", "PEM `file` with certificate and intermediates of the secure port, watched (default a certificate of the signing CA)")
	f.StringVar(&cfg.Own.Key, "tls-key-file", "", "PEM `file` with the key of --tls-cert-file")
	f.StringVar(&cfg.Own.CA, "ca-cert-file", "", "PEM `file` with roots that must verify --tls-cert-file (default none)")
	f.StringSliceVar(&cfg.ServingNames, "serving-name", nil, "Additional DNS `name` or IP address in the certificate that the signing CA signs for the secure port; may be repeated")
}

func (o *serveTLSOptions) apply(cfg *server.Config) error {
	if o.minVersion == "1.2" {
		cfg.MinTLS = tls.VersionTLS12
	}
	if o.keyExchange == "pqc-required" && cfg.MinTLS != 0 {
		return cli.Usagef("--tls-key-exchange pqc-required: TLS 1.2 has no such key exchange, leave --tls-min-version at 1.3")
	}
	cfg.KeyExchanges, _ = mesh.KeyExchanges(o.keyExchange)
	return nil
}
