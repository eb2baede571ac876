package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/trust"
)

// door is an address whose server may start later, move and stop.
type door struct {
	net.Listener
	to atomic.Pointer[string]
}

func newDoor(t *testing.T) *door {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: l}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() { d.pass(in) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); open.Wait() })
	return d
}

func (d *door) pass(in net.Conn) {
	defer in.Close()
	to := d.to.Load()
	if to == nil {
		return
	}
	out, err := net.Dial("tcp", *to)
	if err != nil {
		return
	}
	defer out.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(out, in)
		_ = out.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(in, out)
	_ = in.Close()
	<-done
}

func (d *door) lead(to string) {
	if to == "" {
		d.to.Store(nil)
		return
	}
	d.to.Store(&to)
}

// domain is a mesh with its own trust domain.
type domain struct {
	name   string
	root   *certs.Authority
	signer *certs.Authority
	*Server
}

// startDomain serves a trust domain that is federated with other, whose bundle endpoint is
// at the door. With alias, the accounts of other count as its own.
func startDomain(t *testing.T, name, other string, root *certs.Authority, otherRoot *certs.Authority, at *door, alias bool) *domain {
	t.Helper()
	d := &domain{name: name, root: root, signer: certstest.NewIntermediate(t, root)}
	dir, config := filepath.Join(t.TempDir(), "cluster1"), t.TempDir()
	saveCA(t, dir, d.signer)
	text := "trustDomain: " + name
	if alias {
		text += "\n    trustDomainAliases: [" + other + "]"
	}
	write(t, config, "mesh.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    "+text+"\n")
	first := t.TempDir()
	write(t, first, "bundle.pem", string(certs.EncodeCerts(otherRoot.Cert)))
	d.Server = start(t, func(c *Config) {
		c.CADir, c.ConfigDir, c.BundleAddr = dir, config, "127.0.0.1:0"
		c.BundleRefresh = time.Second
		c.Federated = []trust.Source{{
			TrustDomain: other, URL: "https://" + at.Addr().String() + "/", Via: "--federate",
			ID: "spiffe://" + other + "/ns/istio-system/sa/istiod", File: filepath.Join(first, "bundle.pem"),
		}}
	})
	return d
}

// as returns the TLS configuration of a workload of a trust domain for s, with a
// certificate signed by by.
func as(t *testing.T, trustDomain string, by *certs.Authority, s *domain) *tls.Config {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	who := mesh.Caller{Identity: mesh.Identity{TrustDomain: trustDomain, Namespace: "apps", ServiceAccount: "web"}, Cluster: "cluster1"}
	leaf, err := by.SignLeaf(key.Public(), who, time.Hour, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
	for _, c := range by.Chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.root.Cert)
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{"h2"}, Certificates: []tls.Certificate{cert}}
}

// TestFederation: two meshes exchange their roots. Both accept proxies of either, with the
// roots of its own trust domain only.
func TestFederation(t *testing.T) {
	t.Parallel()
	rootA, rootB := certstest.NewRoot(t), certstest.NewRoot(t)
	toA, toB := newDoor(t), newDoor(t)
	a := startDomain(t, "a.example", "b.example", rootA, rootB, toB, true)
	b := startDomain(t, "b.example", "a.example", rootB, rootA, toA, true)
	toA.lead(a.bundle.Addr().String())
	toB.lead(b.bundle.Addr().String())
	for _, d := range []*domain{a, b} {
		waitFor(t, "bundle", func() bool {
			st := d.trust.Bundles.Status()
			return len(st) == 1 && st[0].Problem == "" && st[0].Sequence > 0
		})
	}
	for _, tc := range []struct {
		name, trustDomain string
		by                *certs.Authority
		at                *domain
		ok                bool
	}{
		{"a at a", "a.example", a.signer, a, true},
		{"b at a", "b.example", b.signer, a, true},
		{"a at b", "a.example", a.signer, b, true},
		{"b at b", "b.example", b.signer, b, true},
		{"a by the roots of b at a", "a.example", b.signer, a, false},
		{"a by the roots of b at b", "a.example", b.signer, b, false},
		{"b by the roots of a at a", "b.example", a.signer, a, false},
		{"b by the roots of a at b", "b.example", a.signer, b, false},
		{"a third one", "c.example", a.signer, a, false},
	} {
		if _, err := dialSecure(t, tc.at.Server, as(t, tc.trustDomain, tc.by, tc.at)); (err == nil) != tc.ok {
			t.Errorf("%s: %v, want accepted: %t", tc.name, err, tc.ok)
		}
	}
	refuseToSign(t, a, as(t, "b.example", b.signer, a))

	// The endpoint fails: its last bundle stays in use, and the server reports it.
	last := a.trust.Bundles.Status()[0]
	toB.lead("")
	impostor := startDomain(t, "b.example", "a.example", rootA, rootA, toA, false) // with roots that do not prove b
	toB.lead(impostor.bundle.Addr().String())
	a.trust.Bundles.Set([]trust.Source{}) // no effect on what a flag says
	waitForProblem(t, a)
	st := a.trust.Bundles.Status()[0]
	if len(st.Roots) != 1 || st.Roots[0] != last.Roots[0] {
		t.Errorf("roots are %+v, want those of before", st.Roots)
	}
	if _, err := dialSecure(t, a.Server, as(t, "b.example", b.signer, a)); err != nil {
		t.Errorf("by the last good bundle: %v", err)
	}
	if _, text := page(t, a.http, "/ready?verbose"); !strings.Contains(text, "trust bundle b.example from https://"+toB.Addr().String()) {
		t.Errorf("/ready?verbose is %s", text)
	}
	var shown []trust.Status
	_, text := get(t, a.Server, "/debug/bundles")
	if err := json.Unmarshal([]byte(text), &shown); err != nil || len(shown) != 1 || shown[0].Problem == "" || shown[0].Until.IsZero() {
		t.Errorf("/debug/bundles is %s", text)
	}
	if _, text := page(t, a.monitoring, "/metrics"); !strings.Contains(text, `meshctl_trust_bundle_problems{trust_domain="b.example"} 1`) {
		t.Error("/metrics tells of no problem")
	}
}

// refuseToSign checks that a mesh signs only for its own trust domain.
func refuseToSign(t *testing.T, at *domain, cfg *tls.Config) {
	t.Helper()
	conn, err := grpc.NewClient(at.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, mesh.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = securityv1alpha1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: string(csr)})
	if status.Code(err) == codes.OK {
		t.Error("a certificate of another trust domain was signed")
	}
}

// TestSameNameOfAnotherTrustDomain: an account of another trust domain is another identity
// than the same account of the own one, unless an alias makes them equal.
func TestSameNameOfAnotherTrustDomain(t *testing.T) {
	rootA, rootB := certstest.NewRoot(t), certstest.NewRoot(t)
	closed := newDoor(t)
	stranger := certstest.NewIntermediate(t, rootB)
	for _, alias := range []bool{false, true} {
		a := startDomain(t, "a.example", "b.example", rootA, rootB, closed, alias)
		waitFor(t, "the file", func() bool { return len(a.trust.Bundles.Domains()["b.example"]) == 1 })
		_, err := dialSecure(t, a.Server, as(t, "b.example", stranger, a))
		if alias && err != nil || !alias && status.Code(err) != codes.PermissionDenied {
			t.Errorf("alias %t: %v", alias, err)
		}
		if !alias && strings.Contains(status.Convert(err).Message(), "b.example") {
			t.Errorf("the caller is told %v", err)
		}
	}
}

// TestCACertificatesOfMeshConfig: roots in MeshConfig count exactly as long as they are
// there.
func TestCACertificatesOfMeshConfig(t *testing.T) {
	own, added, federated := certstest.NewRoot(t), certstest.NewRoot(t), certstest.NewRoot(t)
	dir, config := filepath.Join(t.TempDir(), "cluster1"), t.TempDir()
	saveCA(t, dir, certstest.NewIntermediate(t, own))
	settings := func(certificates string) {
		write(t, config, "mesh.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n"+
			"    trustDomain: a.example\n    trustDomainAliases: [b.example, old.example]\n"+certificates)
	}
	settings("")
	s := &domain{root: own, Server: start(t, func(c *Config) { c.CADir, c.ConfigDir = dir, config })}
	accepted := func(td string, by *certs.Authority) bool {
		_, err := dialSecure(t, s.Server, as(t, td, by, s))
		return err == nil
	}
	if accepted("a.example", added) || !accepted("old.example", own) || !accepted("b.example", own) {
		t.Error("without caCertificates the roots of the CA alone count, for aliases as well")
	}
	pem := func(a *certs.Authority) string {
		return "|\n        " + strings.ReplaceAll(string(certs.EncodeCerts(a.Cert)), "\n", "\n        ") + "\n"
	}
	settings("    caCertificates:\n    - pem: " + pem(added) + "    - trustDomains: [b.example]\n      pem: " + pem(federated))
	waitFor(t, "roots", func() bool { return accepted("a.example", added) })
	for _, tc := range []struct {
		td   string
		by   *certs.Authority
		want bool
	}{
		{"a.example", own, true},
		{"a.example", federated, false},
		{"old.example", own, true},
		{"old.example", added, true},
		{"b.example", federated, true},
		{"b.example", own, false}, // it has its own roots now
		{"b.example", added, false},
	} {
		if got := accepted(tc.td, tc.by); got != tc.want {
			t.Errorf("%s by %v: accepted %t", tc.td, tc.by == own, got)
		}
	}
	// Invalid certificates leave the last valid ones in use.
	settings("    caCertificates: [{pem: junk}]\n")
	settings("    caCertificates: [{spiffeBundleUrl: 'http://b.example/'}]\n")
	if !accepted("a.example", added) {
		t.Error("a broken MeshConfig took roots away")
	}
	settings("")
	waitFor(t, "end of the roots", func() bool { return !accepted("a.example", added) })
}

// waitForProblem waits until the server's only bundle has a problem.
func waitForProblem(t *testing.T, d *domain) {
	t.Helper()
	waitFor(t, "problem", func() bool { return d.trust.Bundles.Status()[0].Problem != "" })
}

// TestBundleEndpoint: the endpoint serves the roots to all callers, and nothing else.
func TestBundleEndpoint(t *testing.T) {
	s := start(t, func(c *Config) { c.BundleAddr = "127.0.0.1:0" })
	client := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if id := certs.URIs(cs.PeerCertificates[0]); len(id) != 1 || id[0] != "spiffe://cluster.local/ns/istio-system/sa/istiod" {
				t.Errorf("the endpoint is %q", id)
			}
			return nil
		},
	}}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("https://" + s.bundle.Addr().String() + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		Keys     []struct{ Use string }
		Sequence uint64 `json:"spiffe_sequence"`
		Hint     int    `json:"spiffe_refresh_hint"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil || len(doc.Keys) != 1 || doc.Keys[0].Use != "x509-svid" || doc.Sequence == 0 || doc.Hint != 300 {
		t.Errorf("%v, the document is %+v", err, doc)
	}
	post, err := client.Post("https://"+s.bundle.Addr().String()+"/", "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer post.Body.Close()
	if post.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST is answered by %s", post.Status)
	}
}
