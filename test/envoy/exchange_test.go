package envoy

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// TestKeyExchanges: Envoy knows the values of meshMTLS.ecdhCurves and uses no other key
// exchange. docs/serve.md lists its default.
func TestKeyExchanges(t *testing.T) {
	t.Parallel()
	ids := map[string]tls.CurveID{
		"X25519MLKEM768": tls.X25519MLKEM768, "X25519": tls.X25519, "P-256": tls.CurveP256, "P-384": tls.CurveP384, "P-521": tls.CurveP521,
	}
	parties := map[string]*party{"": newParty(t, "any", certs.ECDSAP256, certs.ECDSAP256, false)}
	list := []*party{parties[""]}
	for _, name := range mesh.KeyExchangeNames() {
		parties[name] = newParty(t, name, certs.ECDSAP256, certs.ECDSAP256, false)
		parties[name].exchange = name
		list = append(list, parties[name])
	}
	startParties(t, list)
	roots := x509.NewCertPool()
	for _, p := range list {
		roots.AddCert(p.ca.Roots[0])
	}
	for server, p := range parties {
		for client, id := range ids {
			want := server == client
			if server == "" {
				want = strings.Contains("X25519MLKEM768 X25519 P-256", client)
			}
			parties[""].offer = []tls.CurveID{id}
			if err := parties[""].connect(p, roots); (err == nil) != want {
				t.Errorf("a client with %s to an Envoy with %q: %v", client, server, err)
			}
		}
	}
}
