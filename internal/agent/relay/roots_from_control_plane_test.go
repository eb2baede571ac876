package relay

import (
	"crypto/rand"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
)

func TestRootsOf(t *testing.T) {
	root, other := certstest.NewRoot(t), certstest.NewRoot(t)
	pem := func(a *certs.Authority) string { return string(certs.EncodeCerts(a.Cert)) }
	key, err := certs.GenerateKey(certs.ECDSAP256)
	check(t, err)
	leaf, err := root.SignLeaf(key.Public(), mesh.Caller{Identity: mesh.Identity{TrustDomain: "a", Namespace: "b", ServiceAccount: "c"}},
		root.Cert.NotAfter.Sub(root.Cert.NotBefore)/2, root.Cert.NotBefore, rand.Reader)
	check(t, err)
	for name, tc := range map[string]struct {
		pem  []string
		want int
		err  string
	}{
		"one":     {[]string{pem(root)}, 1, ""},
		"several": {[]string{pem(root), pem(other) + pem(root)}, 3, ""},
		"none":    {nil, 0, "there are none"},
		"junk":    {[]string{pem(root), "junk"}, 0, "certificate 2"},
		"a leaf":  {[]string{string(certs.EncodeCerts(leaf))}, 0, "is no CA's"},
		"many":    {[]string{strings.Repeat(pem(root), maxRoots+1)}, 0, "more than"},
	} {
		body, err := anypb.New(&meshv1alpha1.ProxyConfig{CaCertificatesPem: tc.pem})
		check(t, err)
		got, err := rootsOf([]*anypb.Any{body})
		if len(got) != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %d roots, %v; want %d, %q", name, len(got), err, tc.want, tc.err)
		}
	}
	if _, err := rootsOf(nil); err == nil {
		t.Error("no resource: no error")
	}
	body, err := anypb.New(wrapperspb.String("x"))
	check(t, err)
	if _, err := rootsOf([]*anypb.Any{body}); err == nil {
		t.Error("another message: no error")
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
