package create

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRankAndBest(t *testing.T) {
	t.Parallel()
	bad := errors.New("no")
	candidates := []Address{
		{URL: "https://10.0.0.1:6443", Err: bad, Unreached: true},
		{URL: "https://127.0.0.1:6443"},
		{URL: "https://10.0.0.2:6443", Err: bad},
		{URL: "https://10.0.0.3:6443", TLSServerName: "kubernetes"},
		{URL: "https://10.0.0.4:6443"},
		{URL: "https://10.0.0.5:6443"},
	}
	RankAddresses(candidates)
	var got []string
	for _, c := range candidates {
		got = append(got, strings.TrimSuffix(strings.TrimPrefix(c.URL, "https://"), ":6443"))
	}
	want := []string{"10.0.0.4", "10.0.0.5", "10.0.0.3", "127.0.0.1", "10.0.0.2", "10.0.0.1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if best, err := BestAddress(candidates, false); err != nil || best.URL != "https://10.0.0.4:6443" {
		t.Errorf("best is %v, error %v", best, err)
	}
	local := candidates[3:]
	if _, err := BestAddress(local, false); err == nil || !strings.Contains(err.Error(), "loopback addresses only") {
		t.Errorf("loopback: error %v", err)
	}
	if best, err := BestAddress(local, true); err != nil || best.URL != "https://127.0.0.1:6443" {
		t.Errorf("forced: %v, error %v", best, err)
	}
	if _, err := BestAddress(candidates[4:], true); err == nil || !strings.Contains(err.Error(), "at no address") {
		t.Errorf("none: error %v", err)
	}
}

func TestAddressLoopback(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]bool{
		"https://127.0.0.1:6443": true, "https://localhost": true, "https://LocalHost.:1": true, "https://[::1]:6443": true,
		"https://0.0.0.0:6443": true, "https://a.localhost": true, "https://localhost.example.com": false,
		"https://10.0.0.1": false, "https://west.example.com/127.0.0.1": false, ":": false,
	} {
		if got := (&Address{URL: server}).Loopback(); got != want {
			t.Errorf("%s: %v", server, got)
		}
	}
}

// serve runs a TLS server at 127.0.0.1 and 127.0.0.2. Its certificate is for the names and 127.0.0.2,
// and is signed by a new CA.
func serve(t *testing.T, names ...string) (at string, ca []byte) {
	t.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: root.NotBefore, NotAfter: root.NotAfter, DNSNames: names,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 2)},
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, signer.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, signer.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leafDER}, PrivateKey: signer}}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	second, err := net.Listen("tcp", strings.Replace(server.Listener.Addr().String(), "127.0.0.1", "127.0.0.2", 1))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Config.Serve(tls.NewListener(second, server.TLS)) }()
	return server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER})
}

func TestProbe(t *testing.T) {
	t.Parallel()
	at, ca := serve(t, "api.example.com", "kubernetes.default.svc")
	nameless, namelessCA := serve(t)
	_, other := serve(t)
	good, bad := ServerCA{"good", ca}, ServerCA{"other", other}
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "https://" + refusing.Addr().String()
	if err := refusing.Close(); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		url, serverName string
		cas             []ServerCA
		ca, tlsName     string // found
		err             string
		unreached       bool
	}{
		"first that signs":  {at, "kubernetes.default.svc", []ServerCA{bad, {Name: "system"}, good}, "good", "", "", false},
		"for another name":  {at, "", []ServerCA{good}, "good", "kubernetes.default.svc", "", false},
		"asked for another": {at, "west.example.com", []ServerCA{good}, "good", "", "is not for west.example.com", false},
		"no names":          {nameless, "", []ServerCA{{"good", namelessCA}}, "good", "", "is not for 127.0.0.1", false},
		"none signs":        {at, "", []ServerCA{bad, {Name: "system"}}, "", "", "is signed by none of: other, system", false},
		"no CA":             {at, "", []ServerCA{{"broken", []byte("x")}}, "", "", "is signed by none of: broken", false},
		"nobody":            {nobody, "", []ServerCA{good}, "", "", "refused", true},
		"no https":          {"http://127.0.0.1", "", []ServerCA{good}, "", "", "is no URL of the form", false},
		"no URL":            {"127.0.0.1:6443", "", []ServerCA{good}, "", "", "is no URL of the form", false},
	} {
		candidates := []Address{{URL: tc.url, Chosen: true}}
		ProbeAddresses(t.Context(), candidates, &Known{CAs: tc.cas, ServerName: tc.serverName}, time.Now())
		c := candidates[0]
		found := ""
		if c.CA != nil {
			found = c.CA.Name
		}
		if found != tc.ca || c.TLSServerName != tc.tlsName || c.Unreached != tc.unreached ||
			(c.Err == nil) != (tc.err == "") || c.Err != nil && !strings.Contains(c.Err.Error(), tc.err) {
			t.Errorf("%s: found %+v, CA %q", name, c, found)
		}
	}
	late := []Address{{URL: at}}
	if ProbeAddresses(t.Context(), late, &Known{CAs: []ServerCA{good}}, time.Now().Add(2*time.Hour)); late[0].Err == nil {
		t.Error("a certificate that has ended is good")
	}
}

// TestProbeProvesTheAPIServer: a server at an address that an object of the cluster names counts as
// the API server only if its certificate has a name of the API server, and a CA signed it that
// signs such a name for nobody else.
func TestProbeProvesTheAPIServer(t *testing.T) { //nolint:paralleltest // SSL_CERT_FILE
	api, clusterCA := serve(t, "kubernetes.default.svc", "api.example.com")
	tenants, publicCA := serve(t, "tenant.example.com", "api.tenant.example.com")
	kubelet, kubeletCA := serve(t, "node-1")
	roots := t.TempDir() + "/roots.pem"
	if err := os.WriteFile(roots, publicCA, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", roots)
	t.Setenv("SSL_CERT_DIR", t.TempDir())
	system := ServerCA{Name: "those of this system"}
	at := func(url string) string { return strings.Replace(url, "127.0.0.1", "127.0.0.2", 1) } // in each certificate
	for name, tc := range map[string]struct {
		url, host string
		chosen    bool
		ca        ServerCA
		tlsName   string
		works     bool
	}{
		"the API server":                         {at(api), "", false, ServerCA{"cluster", clusterCA}, "", true},
		"by another name":                        {api, "", false, ServerCA{"cluster", clusterCA}, "kubernetes.default.svc", true},
		"public CA, foreign name":                {tenants, "api.example.com", false, system, "", false},
		"public CA, name of the address":         {at(tenants), "api.example.com", false, system, "", false},
		"public CA, name of the kubeconfig":      {tenants, "tenant.example.com", false, system, "tenant.example.com", true},
		"public CA in the kubeconfig":            {at(tenants), "api.example.com", false, ServerCA{"the kubeconfig's", publicCA}, "", false},
		"public CA, usual name":                  {api, "", false, system, "", false},
		"kubelet":                                {kubelet, "127.0.0.1", false, ServerCA{"cluster", kubeletCA}, "", false},
		"kubelet at its address":                 {at(kubelet), "127.0.0.1", false, ServerCA{"cluster", kubeletCA}, "", false},
		"kubelet and loopback":                   {at(kubelet), "127.0.0.2", false, ServerCA{"cluster", kubeletCA}, "", false},
		"chosen, public CA, foreign name":        {tenants, "", true, system, "", false},
		"chosen, public CA, name of the address": {at(tenants), "", true, system, "", true},
		"chosen, cluster CA, name of a node":     {kubelet, "", true, ServerCA{"cluster", kubeletCA}, "", false},
		"chosen, by another name":                {api, "", true, ServerCA{"cluster", clusterCA}, "kubernetes.default.svc", true},
	} {
		candidates := []Address{{URL: tc.url, Chosen: tc.chosen}}
		ProbeAddresses(t.Context(), candidates, &Known{CAs: []ServerCA{tc.ca}, Host: tc.host}, time.Now())
		if c := candidates[0]; (c.Err == nil) != tc.works || c.TLSServerName != tc.tlsName || c.Unreached {
			t.Errorf("%s: %+v", name, c)
		}
	}
}
