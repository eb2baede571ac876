package envoy

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// crlListener is keysListener with revocation lists.
func crlListener() string {
	return strings.Replace(keysListener, "{filename: %[4]q}", "{filename: %[4]q}, crl: {filename: %[5]q}", 1)
}

// list is a revocation list of ca.
func list(t *testing.T, ca *certs.Authority, until time.Time, revoked ...*x509.Certificate) []byte {
	t.Helper()
	template := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: until}
	for _, c := range revoked {
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, ca.Cert, ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// altered breaks the signature of a list.
func altered(t *testing.T, list []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(list)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

// byName is a list of ca without its key id, made at a time.
func byName(t *testing.T, ca *certs.Authority, at time.Time) []byte {
	t.Helper()
	without := *ca.Cert
	without.SubjectKeyId = nil
	der, err := without.CreateCRL(rand.Reader, ca.Key, nil, at, at.Add(time.Hour)) // the other one always writes the key id
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// What Envoy makes of revocation lists, by which lists are passed on.
// docs/certs.md says the same.
func TestRevocationLists(t *testing.T) {
	t.Parallel()
	now := time.Now()
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, Organization: "Istio", CommonName: "CA", TTL: time.Hour}
	newRoot := func() *certs.Authority {
		root, err := certs.NewRoot(spec, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return root
	}
	below := func(root *certs.Authority, cluster mesh.ClusterID) *certs.Authority {
		ca, err := root.NewIntermediate(cluster, spec, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	leafOf := func(ca *certs.Authority) *party {
		key, err := certs.GenerateKey(certs.ECDSAP256)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := ca.SignNames(key.Public(), certs.LeafSpec{
			SPIFFEID: "spiffe://cluster.local/ns/a/sa/b", DNSNames: []string{"a.svc"}, TTL: time.Hour,
		}, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return &party{ca: ca, leaf: leaf, key: key}
	}
	root, namesake := newRoot(), newRoot()
	ca1, ca2, ca3 := below(root, "cluster1"), below(root, "cluster2"), below(namesake, "cluster1")
	good, bad, remote, renewed := leafOf(ca1), leafOf(ca1), leafOf(ca2), leafOf(ca3)
	later, past := now.Add(time.Hour), now.Add(-time.Minute)
	cat := func(lists ...[]byte) (all []byte) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	for name, tc := range map[string]struct {
		lists []byte
		// who gets in
		good, bad, remote, renewed bool
	}{
		"all":            {cat(list(t, root, later), list(t, ca1, later, bad.leaf), list(t, ca2, later), list(t, namesake, later), list(t, ca3, later)), true, false, true, true},
		"of one cluster": {cat(list(t, root, later), list(t, ca1, later, bad.leaf)), true, false, false, false},
		"without root":   {cat(list(t, ca1, later, bad.leaf)), false, false, false, false},
		"root alone":     {cat(list(t, root, later)), false, false, false, false},
		"out of date":    {cat(list(t, root, past), list(t, ca1, later, bad.leaf)), false, false, false, false},
		"of strangers":   {cat(list(t, root, later), list(t, ca1, later, bad.leaf), list(t, below(newRoot(), "nobody"), later, good.leaf), altered(t, list(t, newRoot(), later))), true, false, false, false},
		"forged":         {cat(list(t, root, later), list(t, ca1, later, bad.leaf), list(t, namesake, later), list(t, ca3, later), altered(t, list(t, ca2, later, remote.leaf))), true, false, false, true},
		// Without a key id, the name alone says whose a list is, and the later one counts.
		"of a namesake":   {cat(list(t, root, later), list(t, ca1, later, bad.leaf), byName(t, ca3, now)), false, false, false, false},
		"a CA is revoked": {cat(list(t, root, later, ca2.Cert), list(t, ca1, later), list(t, ca2, later)), true, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := startWithLists(t, good, []*certs.Authority{root, namesake}, tc.lists)
			for _, c := range []struct {
				name string
				p    *party
				want bool
			}{{"good", good, tc.good}, {"bad", bad, tc.bad}, {"remote", remote, tc.remote}, {"renewed", renewed, tc.renewed}} {
				if err := echo(address, c.p, root.Cert); (err == nil) != c.want {
					t.Errorf("%s: %v", c.name, err)
				}
			}
		})
	}
}

func startWithLists(t *testing.T, server *party, roots []*certs.Authority, lists []byte) (address string) {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	key, err := certs.EncodeKey(server.key)
	if err != nil {
		t.Fatal(err)
	}
	var trusted []byte
	for _, r := range roots {
		trusted = append(trusted, certs.EncodeCerts(r.Cert)...)
	}
	write(t, path("key.pem"), key)
	write(t, path("cert.pem"), certs.EncodeCerts(server.leaf, server.ca.Cert))
	write(t, path("roots.pem"), trusted)
	write(t, path("crl.pem"), lists)
	write(t, path("lds.yaml"), fmt.Appendf([]byte("resources:\n"), crlListener()[1:], "l", path("cert.pem"), path("key.pem"), path("roots.pem"), path("crl.pem")))
	write(t, path("bootstrap.yaml"), fmt.Appendf(nil, keysBootstrap, path("lds.yaml")))
	proxy := Start(t, path("bootstrap.yaml"))
	var answer struct {
		Statuses []struct {
			Address struct {
				Socket struct {
					Port int `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(proxy.Get("/listeners?format=json"), &answer); err != nil || len(answer.Statuses) != 1 {
		t.Fatalf("%v, listeners: %+v", err, answer)
	}
	return fmt.Sprintf("127.0.0.1:%d", answer.Statuses[0].Address.Socket.Port)
}

// echo is nil when Envoy accepts the client.
func echo(address string, p *party, root *x509.Certificate) error {
	conn, err := tls.Dial("tcp", address, &tls.Config{
		RootCAs: certs.Pool([]*x509.Certificate{root}), ServerName: "a.svc", MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{p.leaf.Raw, p.ca.Cert.Raw}, PrivateKey: p.key}},
	})
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the answer is all that counts
	if _, err := conn.Write([]byte("x")); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}
