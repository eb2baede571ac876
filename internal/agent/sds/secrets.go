package sds

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Secrets holds the PEM that Envoy proves itself and checks peers with: the certificate
// chain, leaf first, its key, the roots of the mesh, and the revocation lists of its CAs,
// if there are any.
type Secrets struct{ Chain, Key, Roots, Lists []byte }

// secret is an encoded resource. Its version is a hash of its content.
type secret struct {
	name, version string
	body          *anypb.Any
}

func (s Secrets) encode() (map[string]*secret, error) {
	peers := &tlsv3.CertificateValidationContext{TrustedCa: inline(s.Roots)}
	if len(s.Lists) > 0 {
		peers.Crl = inline(s.Lists)
	}
	messages := []*tlsv3.Secret{
		{
			Name: mesh.SecretCertificate,
			Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: inline(s.Chain),
				PrivateKey:       inline(s.Key),
			}},
		},
		{
			Name: mesh.SecretRoots,
			Type: &tlsv3.Secret_ValidationContext{ValidationContext: peers},
		},
	}
	out := make(map[string]*secret, len(messages))
	for _, m := range messages {
		s := encode(m)
		if s == nil {
			return nil, fmt.Errorf("secret %s cannot be encoded", m.GetName())
		}
		out[m.GetName()] = s
	}
	return out, nil
}

// encode returns nil for a message that cannot be encoded.
func encode(m *tlsv3.Secret) *secret {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(value)
	return &secret{
		name:    m.GetName(),
		version: hex.EncodeToString(sum[:8]),
		body:    &anypb.Any{TypeUrl: xdswire.SecretType, Value: value},
	}
}

func inline(data []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
}
