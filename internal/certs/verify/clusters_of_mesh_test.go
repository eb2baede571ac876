package verify

import (
	"crypto/rand"
	"crypto/x509"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
)

func TestMesh(t *testing.T) {
	t.Parallel()
	now := time.Now()
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: time.Hour}
	below := func(root *certs.Authority, place string) ClusterCA {
		a, err := root.NewIntermediate("c", spec, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return ClusterCA{place, a.Cert, a.Chain, a.Roots}
	}
	var roots []*certs.Authority
	for range 2 {
		root, err := certs.NewRoot(spec, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		roots = append(roots, root)
	}
	a, b, other := below(roots[0], "a"), below(roots[0], "b"), below(roots[1], "other")
	both := a
	both.Roots = []*x509.Certificate{roots[0].Cert, roots[1].Cert}
	for name, tc := range map[string]struct {
		clusters []ClusterCA
		at       time.Time
		want     []string // who refuses
	}{
		"one root":      {[]ClusterCA{a, b}, now, nil},
		"two roots":     {[]ClusterCA{a, b, other}, now, []string{"a", "b", "other", "other"}},
		"half the way":  {[]ClusterCA{both, other}, now, []string{"other"}},
		"expired":       {[]ClusterCA{a, other}, now.Add(2 * time.Hour), nil},
		"self-signed":   {[]ClusterCA{a, {"root", roots[0].Cert, nil, []*x509.Certificate{roots[0].Cert}}}, now, nil},
		"none":          {nil, now, nil},
		"without roots": {[]ClusterCA{a, {"b", b.Signer, b.Chain, nil}}, now, []string{"b"}},
	} {
		var got []string
		for _, f := range Mesh(tc.clusters, tc.at) {
			if f.Code != OtherRoot || f.Severity != Error || f.Fix == "" {
				t.Errorf("%s: %+v", name, f)
			}
			got = append(got, f.Place)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
