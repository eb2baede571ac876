package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/ca"
)

func saveCA(t *testing.T, dir string, a *certs.Authority) {
	t.Helper()
	if _, err := store.SaveIntermediates(filepath.Dir(dir), []store.Intermediate{{Cluster: "cluster1", Authority: a}}, true); err != nil {
		t.Fatal(err)
	}
}

// workload is a caller with a certificate and its own roots.
type workload struct {
	cert  tls.Certificate
	roots *x509.CertPool
	last  *grpc.ClientConn // of dial
}

func workloadOf(t *testing.T, a *certs.Authority) *workload {
	t.Helper()
	return workloadAs(t, a, "web")
}

func workloadAs(t *testing.T, a *certs.Authority, account string) *workload {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	who := mesh.Caller{Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "apps", ServiceAccount: account}, Cluster: "cluster1"}
	leaf, err := a.SignLeaf(key.Public(), who, time.Hour, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w := &workload{cert: tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, roots: x509.NewCertPool()}
	for _, c := range a.Chain {
		w.cert.Certificate = append(w.cert.Certificate, c.Raw)
	}
	for _, r := range a.Roots {
		w.roots.AddCert(r)
	}
	return w
}

// ask requests a certificate over a new connection.
func (w *workload) ask(t *testing.T, s *Server) ([]string, error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+s.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: w.roots, ServerName: "istiod.istio-system.svc", Certificates: []tls.Certificate{w.cert}, Time: s.cfg.Now,
	})))
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
	resp, err := securityv1alpha1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: string(csr)})
	return resp.GetCertChain(), err
}

func page(t *testing.T, l net.Listener, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + l.Addr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestRootRotates: no caller with the old or new root is refused while the root rotates.
func TestRootRotates(t *testing.T) {
	t.Parallel()
	a, b := certstest.NewRoot(t), certstest.NewRoot(t)
	underA, underB := certstest.NewIntermediate(t, a), certstest.WithRoots(certstest.NewIntermediate(t, b), a, b)
	both, last := *underA, *underB
	both.Roots = underB.Roots
	last.Roots = []*x509.Certificate{b.Cert}
	dir := filepath.Join(t.TempDir(), "cluster1")
	saveCA(t, dir, underA)
	var ahead atomic.Int64 // of the server's clock
	s := start(t, func(c *Config) {
		c.CADir, c.Signing.TTL = dir, 10*time.Minute
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	var workloads []*workload
	for i, step := range []*certs.Authority{underA, &both, underB, &last} {
		saveCA(t, dir, step)
		if i == 3 {
			waitFor(t, "refusal", func() bool { return slices.Contains(s.ca.Status().Codes, ca.DroppedRoot) })
			if text := strings.Join(s.caPage().Differences, "\n"); !strings.Contains(text, "certificates of the earlier signer") {
				t.Errorf("differences are %q", text)
			}
			ahead.Store(int64(25 * time.Minute)) // the certificates of the first signer are over
		}
		waitFor(t, "reload", func() bool {
			set := s.ca.Current()
			return set.Cert.Equal(step.Cert) && len(set.Roots) == len(step.Roots)
		})
		switch i {
		case 2:
			workloads[0].roots = workloads[1].roots // it has renewed its certificate, with both roots
		case 3:
			workloads = workloads[2:] // the others' certificates are over
		}
		for _, w := range append(workloads, workloadOf(t, step)) {
			chain, err := w.ask(t, s)
			if err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			if chain[len(chain)-1] != string(certs.EncodeCerts(step.Roots...)) || chain[1] != string(certs.EncodeCerts(step.Cert)) {
				t.Errorf("step %d: the answer has another signer or other roots", i)
			}
		}
		workloads = append(workloads, workloadOf(t, step))
	}
	if _, err := workloadOf(t, underA).ask(t, s); err == nil {
		t.Error("a certificate of the dropped root is accepted")
	}

	p := s.caPage()
	if n := len(p.Served); n != 2 || p.Served[1].Signer != p.Loaded.Signer || p.Served[0].Signer.SHA256 != certs.Fingerprint(underA.Cert) || p.Error != "" {
		t.Errorf("the page has %+v", p)
	}
	if len(p.Differences) != 0 {
		t.Errorf("differences are %q", p.Differences)
	}

	// A bad set is reported everywhere, and the last good one signs.
	if err := os.WriteFile(filepath.Join(dir, "ca-cert.pem"), certs.EncodeCerts(underA.Cert), 0o600); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "refusal", func() bool { return len(s.ca.Problems()) > 0 })
	if code, text := page(t, s.http, "/ready?verbose"); code != http.StatusOK || !strings.Contains(text, "key-mismatch") || !strings.Contains(text, "keeps signing") {
		t.Errorf("/ready?verbose answers %d with %s", code, text)
	}
	if _, err := workloads[len(workloads)-1].ask(t, s); err != nil {
		t.Error(err)
	}
	_, text := page(t, s.monitoring, "/metrics")
	for _, want := range []string{
		"meshctl_ca_problems 1", `meshctl_ca_reloads_total{result="refused"} 2`,
		"citadel_server_root_cert_expiry_timestamp " + float(b.Cert.NotAfter), "citadel_server_cert_chain_expiry_timestamp " + float(last.Cert.NotAfter),
		"citadel_server_root_cert_expiry_seconds ", "citadel_server_cert_chain_expiry_seconds ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics is without %q", want)
		}
	}
}

// float returns a time in the format of metrics.
func float(at time.Time) string { return strconv.FormatFloat(float64(at.Unix()), 'g', -1, 64) }

// TestCAComesLate: the server waits for a CA that does not exist yet, and reports it.
func TestCAComesLate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s, stop, done := launch(t, func(c *Config) { c.CADir = dir })
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	waitFor(t, "the registry", func() bool {
		select {
		case <-s.registry.Ready():
			return true
		default:
			return false
		}
	})
	if code, text := page(t, s.http, "/ready"); code != http.StatusServiceUnavailable || !strings.Contains(text, "signing CA: none in "+dir) {
		t.Errorf("/ready answers %d with %s", code, text)
	}
	a := certstest.NewRoot(t)
	signer := certstest.NewIntermediate(t, a)
	saveCA(t, dir, signer)
	waitFor(t, "readiness", func() bool { return s.ready.Load() })
	if _, err := workloadOf(t, signer).ask(t, s); err != nil {
		t.Error(err)
	}
}

// TestRevokedLeaf: a certificate in the CA's revocation list is refused at handshakes.
func TestRevokedLeaf(t *testing.T) {
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "Root CA"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	signer := &certs.Authority{Cert: cert, Key: key, Roots: []*x509.Certificate{cert}}
	dir := filepath.Join(t.TempDir(), "cluster1")
	saveCA(t, dir, signer)
	s := start(t, func(c *Config) { c.CADir = dir })
	bad, good := workloadOf(t, signer), workloadOf(t, signer)
	for _, w := range []*workload{bad, good} {
		if _, err := w.ask(t, s); err != nil {
			t.Fatal(err)
		}
	}
	list, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour),
		RevokedCertificateEntries: []x509.RevocationListEntry{{SerialNumber: bad.cert.Leaf.SerialNumber, RevocationTime: time.Now()}},
	}, signer.Cert, signer.Key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "ca-crl.pem", string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: list})))
	waitFor(t, "the list", func() bool { return s.ca.Current().Revoked(bad.cert.Leaf, signer.Cert) })
	if _, err := bad.ask(t, s); status.Code(err) != codes.Unavailable {
		t.Errorf("error is %v", err)
	}
	if _, err := good.ask(t, s); err != nil {
		t.Error(err)
	}
	// A damaged list leaves the last good one in force.
	write(t, dir, "ca-crl.pem", "junk")
	waitFor(t, "an alarm", func() bool { return len(s.ca.Problems()) > 0 })
	if _, err := bad.ask(t, s); err == nil {
		t.Error("a revoked certificate is accepted")
	}
	if _, text := page(t, s.http, "/ready?verbose"); !strings.Contains(text, "revocation lists") {
		t.Errorf("/ready?verbose has %q", text)
	}
}
