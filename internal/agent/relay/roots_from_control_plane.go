package relay

import (
	"crypto/x509"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/anypb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
)

const maxRoots = 1000

// Roots handles PCDS. The function receives all roots of the mesh at each change.
type Roots func([]*x509.Certificate) error

// Handle implements Handler.
func (f Roots) Handle(_ string, resources []*anypb.Any) error {
	roots, err := rootsOf(resources)
	if err != nil {
		return err
	}
	return f(roots)
}

// rootsOf returns the roots in a PCDS response.
func rootsOf(resources []*anypb.Any) ([]*x509.Certificate, error) {
	if len(resources) == 0 {
		return nil, errors.New("there are none")
	}
	var m meshv1alpha1.ProxyConfig
	if err := resources[0].UnmarshalTo(&m); err != nil {
		return nil, err
	}
	var roots []*x509.Certificate
	for i, text := range m.GetCaCertificatesPem() {
		parsed, err := certs.ParseCerts([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", i+1, err)
		}
		for _, r := range parsed {
			if !r.BasicConstraintsValid || !r.IsCA {
				return nil, fmt.Errorf("certificate %d, %s, is no CA's", i+1, r.Subject)
			}
		}
		if roots = append(roots, parsed...); len(roots) > maxRoots {
			return nil, fmt.Errorf("there are more than %d", maxRoots)
		}
	}
	if len(roots) == 0 {
		return nil, errors.New("there are none")
	}
	return roots, nil
}
