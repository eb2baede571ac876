package envoy

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

const keysBootstrap = `
node: {id: test, cluster: test}
dynamic_resources: {lds_config: {path_config_source: {path: %q}}}
`

// keysListener requires a client certificate and echoes its input.
const keysListener = `
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: %[1]s
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
  filter_chains:
  - transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
        require_client_certificate: true
        common_tls_context:
          tls_certificates:
          - {certificate_chain: {filename: %[2]q}, private_key: {filename: %[3]q}}
          validation_context: {trusted_ca: {filename: %[4]q}}
    filters:
    - name: echo
      typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}
`

// party is a peer with certificates of one kind of CA and key.
type party struct {
	name    string
	ca      *certs.Authority
	leaf    *x509.Certificate
	key     crypto.Signer
	address string // of its listener; empty when Envoy refused the certificate
	// exchange is the only key exchange of its listener, offer has its key exchanges as a
	// client; empty means the default.
	exchange string
	offer    []tls.CurveID
}

func newParty(t *testing.T, name string, caKey, leafKey certs.Algorithm, constrain bool) *party {
	t.Helper()
	now := time.Now()
	spec := certs.CASpec{Algorithm: caKey, CommonName: "CA", TTL: time.Hour}
	if constrain {
		spec.PermittedURIDomains = []string{"cluster.local"}
		spec.PermittedDNSDomains = []string{"svc", "cluster.local"}
	}
	root, err := certs.NewRoot(spec, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := root.NewIntermediate("cluster1", spec, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := certs.GenerateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.SignNames(key.Public(), certs.LeafSpec{
		SPIFFEID: "spiffe://cluster.local/ns/a/sa/b", DNSNames: []string{"a.svc"}, TTL: time.Hour,
	}, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &party{name: name, ca: ca, leaf: leaf, key: key}
}

// connect is nil when the party as a client and an Envoy that shows the
// certificate of server accept each other.
func (p *party) connect(server *party, roots *x509.CertPool) error {
	if server.address == "" {
		return errors.New("Envoy does not take the certificate for its own")
	}
	conn, err := tls.Dial("tcp", server.address, &tls.Config{
		RootCAs: roots, ServerName: "a.svc", MinVersion: tls.VersionTLS12, CurvePreferences: p.offer,
		Certificates: []tls.Certificate{{Certificate: [][]byte{p.leaf.Raw, p.ca.Cert.Raw}, PrivateKey: p.key}},
	})
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the answer is all that counts
	// Under TLS 1.3 a client learns now whether it was accepted.
	if _, err := conn.Write([]byte("x")); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// What Envoy makes of kinds of keys, in CAs and in leaves, and of name
// constraints. docs/certs.md and the help of meshctl certs leaf say the same.
func TestKindsOfKeys(t *testing.T) {
	t.Parallel()
	usual := newParty(t, "usual", certs.ECDSAP256, certs.ECDSAP256, false)
	parties := []*party{usual, newParty(t, "constrained", certs.ECDSAP256, certs.ECDSAP256, true)}
	for _, a := range certs.Algorithms() {
		if a == certs.RSA3072 || a == certs.RSA4096 {
			continue // slow to make, and like rsa-2048
		}
		parties = append(parties,
			newParty(t, "ca-"+string(a), a, certs.ECDSAP256, false),
			newParty(t, "leaf-"+string(a), certs.ECDSAP256, a, false))
	}
	outside := newParty(t, "outside", certs.ECDSAP256, certs.ECDSAP256, true)
	other := mesh.Caller{Identity: mesh.Identity{TrustDomain: "other.example", Namespace: "a", ServiceAccount: "b"}}
	var err error
	if outside.leaf, err = outside.ca.SignLeaf(outside.leaf.PublicKey, other, time.Hour, time.Now(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	parties = append(parties, outside)

	startParties(t, parties)
	roots := x509.NewCertPool()
	for _, p := range parties {
		roots.AddCert(p.ca.Roots[0])
	}
	refusedClients := []string{"leaf-ed25519", "outside"}
	for _, p := range parties {
		err := p.connect(usual, roots)
		t.Logf("%s as a client of Envoy: %v", p.name, err)
		if refused := err != nil; refused != slices.Contains(refusedClients, p.name) {
			t.Errorf("%s as a client of Envoy: %v", p.name, err)
		}
		if p == outside {
			continue // a client of Go would refuse it by itself
		}
		err = usual.connect(p, roots)
		t.Logf("%s as the certificate of Envoy: %v", p.name, err)
		if err != nil {
			t.Errorf("%s as the certificate of Envoy: %v", p.name, err)
		}
	}
}

// startParties starts an Envoy with a listener for each party, all of which
// trust the roots of all.
func startParties(t *testing.T, parties []*party) {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	var roots []byte
	config := "resources:\n"
	for _, p := range parties {
		roots = append(roots, certs.EncodeCerts(p.ca.Roots...)...)
		key, err := certs.EncodeKey(p.key)
		if err != nil {
			t.Fatal(err)
		}
		write(t, path(p.name+".key"), key)
		write(t, path(p.name+".pem"), certs.EncodeCerts(p.leaf, p.ca.Cert))
		listener := keysListener[1:]
		if p.exchange != "" {
			listener = strings.Replace(listener, "common_tls_context:", fmt.Sprintf("common_tls_context:\n          tls_params: {ecdh_curves: [%q]}", p.exchange), 1)
		}
		config += fmt.Sprintf(listener, p.name, path(p.name+".pem"), path(p.name+".key"), path("roots.pem"))
	}
	write(t, path("roots.pem"), roots)
	write(t, path("lds.yaml"), []byte(config))
	write(t, path("bootstrap.yaml"), fmt.Appendf(nil, keysBootstrap, path("lds.yaml")))
	proxy := Start(t, path("bootstrap.yaml"))

	var answer struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Port int `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(proxy.Get("/listeners?format=json"), &answer); err != nil {
		t.Fatal(err)
	}
	for _, s := range answer.Statuses {
		for _, p := range parties {
			if p.name == s.Name {
				p.address = fmt.Sprintf("127.0.0.1:%d", s.Address.Socket.Port)
			}
		}
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
