package debug

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/server/xdsgen/plugins"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// shown returns a resource without private keys and credentials.
func shown(r *xdswire.Resource) (*anypb.Any, error) {
	a, err := r.Any()
	switch {
	case err != nil:
		return nil, err
	case a.GetTypeUrl() == xdswire.ExtensionType:
		return plugins.WithoutCredentials(a)
	case a.GetTypeUrl() != xdswire.SecretType:
		return a, nil
	}
	var s tlsv3.Secret
	if err := a.UnmarshalTo(&s); err != nil {
		return nil, fmt.Errorf("secret %s: %w", r.Name, err)
	}
	hidden := func() *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte("[redacted]")}}
	}
	switch t := s.GetType().(type) {
	case *tlsv3.Secret_TlsCertificate:
		t.TlsCertificate.PrivateKey, t.TlsCertificate.Password = hidden(), nil
		t.TlsCertificate.PrivateKeyProvider, t.TlsCertificate.Pkcs12 = nil, nil
	case *tlsv3.Secret_ValidationContext:
	default: // all other secrets are hidden whole
		s.Type = &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: hidden()}}
	}
	return xdswire.Any(&s)
}
