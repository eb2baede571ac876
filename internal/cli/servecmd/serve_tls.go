package servecmd

import (
	"crypto/tls"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/server"
)

// serveTLSOptions are the flags of the secure port.
type serveTLSOptions struct {
	minVersion, keyExchange string
	own                     server.OwnFiles
	names                   []string
}

func (o *serveTLSOptions) bind(f *pflag.FlagSet) {
	f.StringVar(&o.minVersion, "tls-min-version", "1.3", "Oldest `version` of TLS that proxies may speak: 1.3 or 1.2, the latter with ECDHE and AEAD ciphers only")
	cli.MarkWeakening(f, "tls-min-version", "1.2")
	f.StringVar(&o.keyExchange, "tls-key-exchange", "pqc-preferred", "`Kind` of key exchange on the secure port: pqc-preferred (X25519MLKEM768 with who can), pqc-required (nothing else) or classic")
	cli.MarkWeakening(f, "tls-key-exchange", "classic")
	f.StringVar(&o.own.Cert, "tls-cert-file", "", "`File` of the secure port's certificate and its intermediates, PEM, followed (default: the signing CA signs one)")
	f.StringVar(&o.own.Key, "tls-key-file", "", "`File` of its key, PEM")
	f.StringVar(&o.own.CA, "ca-cert-file", "", "`File` of the roots that it must lead to, PEM (default: any)")
	f.StringSliceVar(&o.names, "serving-name", nil, "Further DNS `name` or IP address of the certificate that the signing CA signs for the secure port; repeatable")
}

func (o *serveTLSOptions) apply(cfg *server.Config) error {
	cfg.Own, cfg.ServingNames = o.own, o.names
	switch o.minVersion {
	case "1.3":
	case "1.2":
		cfg.MinTLS = tls.VersionTLS12
	default:
		return cli.Usagef("--tls-min-version %q: want 1.3 or 1.2", o.minVersion)
	}
	switch o.keyExchange {
	case "pqc-preferred":
	case "pqc-required":
		if cfg.MinTLS != 0 {
			return cli.Usagef("--tls-key-exchange pqc-required: TLS 1.2 has no such key exchange, leave --tls-min-version at 1.3")
		}
		cfg.KeyExchanges = []tls.CurveID{tls.X25519MLKEM768}
	case "classic":
		cfg.KeyExchanges = []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384}
	default:
		return cli.Usagef("--tls-key-exchange %q: want pqc-preferred, pqc-required or classic", o.keyExchange)
	}
	return nil
}
