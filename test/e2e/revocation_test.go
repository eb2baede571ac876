package e2e

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/demo"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

// TestRevokedPeerIsRefused revokes a certificate in a mesh of two clusters with real Envoys,
// while their clients make new connections all the time. In cluster1 agents have the file
// that Istio mounts, in cluster2 they ask the control plane. Both refuse the peer from then
// on, and no other peer.
func TestRevokedPeerIsRefused(t *testing.T) {
	dir := filepath.Join(harness.ShortDir(t), "demo")
	m, err := demo.Start(t.Context(), demo.Options{
		Program: meshctl, Envoy: envoy.Path(t), Dir: dir,
		Rand: rand.Reader, Now: time.Now, LookupEnv: os.LookupEnv,
		Done: func(step string) { t.Log(step) },
	})
	if err != nil {
		logAll(t, dir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logAll(t, dir)
		}
		if err := m.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for _, cluster := range []mesh.ClusterID{"cluster1", "cluster2"} {
		replace(t, filepath.Join(m.Dir(cluster), "closing.yaml"), closing)
	}
	ca := filepath.Join(dir, "ca")
	root, err := store.LoadRoot(ca, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	first, second := loadCA(t, filepath.Join(ca, "cluster1")), loadCA(t, filepath.Join(ca, "cluster2"))
	stolen, good, remote := peerOf(t, first), peerOf(t, first), peerOf(t, second)
	servers := []string{"127.1.0.11:5000", "127.2.0.11:5000"}
	for _, server := range servers {
		for _, p := range []*tls.Certificate{stolen, good, remote} {
			eventually(t, "everybody is let in at "+server, func() error { return askAs(t, server, p) })
		}
	}

	l := startLoad(t, m)
	later := time.Now().Add(time.Hour)
	lists := revocations(t, root, later) + revocations(t, first, later, stolen.Leaf) + revocations(t, second, later)
	pods, err := filepath.Glob(filepath.Join(dir, "pods", "cluster1-*", "var", "run", "secrets", "istio"))
	if err != nil || len(pods) != 3 {
		t.Fatalf("%d pods, %v", len(pods), err)
	}
	for _, pod := range pods {
		if err := os.Mkdir(filepath.Join(pod, "crl"), 0o700); err != nil {
			t.Fatal(err)
		}
		replace(t, filepath.Join(pod, "crl", "ca-crl.pem"), lists)
	}
	for _, cluster := range []string{"cluster1", "cluster2"} {
		replace(t, filepath.Join(ca, cluster, "ca-crl.pem"), lists)
	}
	refused := func(server string) func() error {
		return func() error {
			if err := askAs(t, server, stolen); err == nil {
				return fmt.Errorf("the revoked peer is let in at %s", server)
			}
			return nil
		}
	}
	eventually(t, "the file arrives", refused(servers[0]))
	l.say(t, "the file")
	// The agent asks once a minute.
	for asked := time.Now(); askAs(t, servers[1], stolen) == nil; l.until(t, l.sent.Load()+100) {
		if time.Since(asked) > 2*deadline {
			t.Fatal("the revoked peer is let in where the control plane is asked")
		}
	}
	for _, server := range servers {
		for _, p := range []*tls.Certificate{good, remote} {
			if err := askAs(t, server, p); err != nil {
				t.Errorf("who is not revoked is refused at %s: %v", server, err)
			}
		}
	}
	// Unusable lists change nothing and are reported.
	replace(t, filepath.Join(ca, "cluster2", "ca-crl.pem"), "junk")
	status := func() error {
		out, err := exec.Command(meshctl, "certs", "status", "--server", "127.2.0.2:8080").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "no-pem") {
			return fmt.Errorf("certs status: %w\n%s", err, out)
		}
		return nil
	}
	eventually(t, "the control plane tells", status)
	for _, pod := range pods {
		replace(t, filepath.Join(pod, "crl", "ca-crl.pem"), "junk")
	}
	eventually(t, "the agent tells", func() error {
		if !strings.Contains(adminGet(t, "127.1.0.11:15020", "/metrics"), "meshctl_agent_revocation_lists_problems 1") {
			return errors.New("meshctl_agent_revocation_lists_problems is not 1")
		}
		return nil
	})
	for _, server := range servers {
		if err := refused(server)(); err != nil {
			t.Error(err)
		}
	}
	l.until(t, l.sent.Load()+200)
	l.say(t, "everything")
	if n := l.stop(); n < 1000 {
		t.Errorf("%d requests", n)
	}
}

func loadCA(t *testing.T, dir string) *certs.Authority {
	t.Helper()
	a, err := store.Load(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// peerOf is a certificate of the sample's client.
func peerOf(t *testing.T, a *certs.Authority) *tls.Certificate {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.SignNames(key.Public(), certs.LeafSpec{SPIFFEID: "spiffe://cluster.local/ns/sample/sa/client", TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw, a.Cert.Raw}, PrivateKey: key, Leaf: leaf}
}

// askAs is nil when the server's Envoy lets the peer in, over a connection of
// its own with one of those key exchanges, if any are given.
func askAs(t *testing.T, server string, p *tls.Certificate, exchanges ...tls.CurveID) error {
	t.Helper()
	client := &http.Client{Timeout: deadline, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"istio-http/1.1"}, Certificates: []tls.Certificate{*p},
		CurvePreferences:   exchanges,
		InsecureSkipVerify: true, // whom the server lets in is the question
	}}}
	resp, err := client.Get("https://" + server + "/hello")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", server, resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// revocations is a list of a.
func revocations(t *testing.T, a *certs.Authority, until time.Time, revoked ...*x509.Certificate) string {
	t.Helper()
	template := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: until}
	for _, c := range revoked {
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, a.Cert, a.Key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
}
