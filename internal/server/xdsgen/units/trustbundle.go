package units

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// proxyConfig is the name of the only resource of its type, which has none on the wire.
const proxyConfig = ""

// TrustView is the view of the roots of the mesh: a ProxyConfig with no other fields, as
// Istio's agents read it.
type TrustView struct{}

// Type implements View.
func (v TrustView) Type() string { return xdswire.ProxyConfigType }

// Keys implements View.
func (v TrustView) Keys() Keys { return Keys{Fixed: 1, FixedFacts: snapshot.TrustFacts} }

// Unit implements View.
func (v TrustView) Unit(s *snapshot.Snapshot, _ Key) Unit {
	if s.TrustBundle == nil {
		return nil
	}
	return trustUnit{s.TrustBundle}
}

type trustUnit struct{ bundle *snapshot.TrustBundle }

func (u trustUnit) Type() string { return xdswire.ProxyConfigType }

func (u trustUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	return wire.One(enc.Resource(xdswire.ProxyConfigType, proxyConfig, &meshv1alpha1.ProxyConfig{CaCertificatesPem: u.bundle.Roots}))
}

// RootsIn returns the roots of the mesh in a resource of trustView, as PEM.
func RootsIn(r *xdswire.Resource) ([]string, error) {
	var m meshv1alpha1.ProxyConfig
	if err := proto.Unmarshal(r.Message(), &m); err != nil {
		return nil, fmt.Errorf("resource of %s: %w", xdswire.ShortType(xdswire.ProxyConfigType), err)
	}
	return m.GetCaCertificatesPem(), nil
}
