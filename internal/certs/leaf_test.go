package certs

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// TestSignLeafOfAllKeys: authorities with keys of each kind sign keys of each kind, and the leaves
// verify, have the name and the cluster, and end with the authority at the latest.
func TestSignLeafOfAllKeys(t *testing.T) {
	keys := map[Algorithm]any{}
	for _, a := range []Algorithm{ECDSAP256, ECDSAP384, RSA2048, Ed25519} {
		keys[a] = newKey(t, a).Public()
	}
	for algorithm := range keys {
		t.Run(string(algorithm), func(t *testing.T) {
			s := spec("Root CA")
			s.Algorithm = algorithm
			root, err := NewRoot(s, now, rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			for depth, a := range []*Authority{root, newIntermediate(t, root, "cluster1")} {
				for kind, key := range keys {
					for _, who := range []mesh.Caller{
						caller(),
						{Identity: mesh.Identity{TrustDomain: "td", Namespace: "n", ServiceAccount: "s"}},
						{Identity: mesh.Identity{TrustDomain: strings.Repeat("t", 200), Namespace: "n", ServiceAccount: strings.Repeat("s", 63) + "." + strings.Repeat("s", 60)}, Cluster: mesh.ClusterID(strings.Repeat("c", 253))},
					} {
						for _, ttl := range []time.Duration{time.Second, 24 * time.Hour, 100 * year} {
							what := fmt.Sprint("depth ", depth, ", ", kind, ", ", who, ", ", ttl)
							leaf, err := a.SignLeaf(key, who, ttl, now, rand.Reader)
							if err != nil {
								t.Fatal(what, err)
							}
							end := now.Add(ttl)
							if end.After(a.Cert.NotAfter) {
								end = a.Cert.NotAfter
							}
							if !leaf.NotAfter.Equal(end.Truncate(time.Second)) {
								t.Errorf("%s: ends %v, want %v", what, leaf.NotAfter, end)
							}
							if cluster, _ := ClusterOf(leaf); cluster != who.Cluster || len(leaf.URIs) != 1 || leaf.URIs[0].String() != who.Identity.String() {
								t.Errorf("%s: names %v of cluster %q", what, leaf.URIs, cluster)
							}
							if err := leaf.CheckSignatureFrom(a.Cert); err != nil {
								t.Errorf("%s: %v", what, err)
							}
						}
					}
				}
			}
		})
	}
}

// BenchmarkSign parses and checks a request and signs the certificate.
func BenchmarkSign(b *testing.B) {
	a := newIntermediate(b, newRoot(b), "cluster1")
	csr := newCSR(b, newKey(b, ECDSAP256))
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			req, err := ParseCSR(csr)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := a.SignLeaf(req.PublicKey, caller(), time.Hour, now, rand.Reader); err != nil {
				b.Fatal(err)
			}
		}
	})
	key := newKey(b, ECDSAP256).Public()
	b.Run("SignLeaf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := a.SignLeaf(key, caller(), time.Hour, now, rand.Reader); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRefuseRSA16384: an oversized key costs no more than parsing the request.
func BenchmarkRefuseRSA16384(b *testing.B) {
	csr := unsignedCSR(b, rsaSPKI(b, 16384, 65537))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseCSR(csr); err == nil {
			b.Fatal("accepted")
		}
	}
}
