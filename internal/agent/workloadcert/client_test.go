package workloadcert

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(ca *certstest.IstioCA) *Client {
	return &Client{Servers: []Server{{ca.Addr, certstest.ServerName}}, Kind: "certificate authority", RootFile: ca.RootFile, TokenFile: ca.TokenFile, Cluster: "cluster1"}
}

// get requests a certificate and checks the response.
func get(t *testing.T, c *Client, current *tls.Certificate) (*Certificate, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, certstest.Identity())
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Sign(ctx, csr, time.Minute, Current{Certificate: current})
	if err != nil {
		return nil, err
	}
	return check(certstest.Identity(), key, r, time.Now())
}

func TestClientSign(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	ca.Serve(t)
	other := certstest.NewIstioCA(t).Root.Cert // a root that the file has beside the real one
	write(t, ca.RootFile, string(certs.EncodeCerts(other, ca.Root.Cert)))
	c := newClient(ca)

	cert, err := get(t, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(cert.chain); n != 2 {
		t.Errorf("chain of %d certificates, want leaf and intermediate", n)
	}
	roots, err := certs.ParseCerts(cert.Roots())
	if err != nil || len(roots) != 2 {
		t.Errorf("%d roots, %v, want that of the answer and the other of the file", len(roots), err)
	}
	if _, err := tls.X509KeyPair(cert.Chain(), mustKey(t, cert)); err != nil {
		t.Errorf("chain and key do not fit: %v", err)
	}

	write(t, ca.TokenFile, "rotated")
	if _, err := get(t, c, cert.client()); err != nil {
		t.Error(err)
	}
	if err := os.Remove(ca.TokenFile); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, c, cert.client()); err != nil {
		t.Errorf("with the certificate alone: %v", err)
	}
	id := certstest.Identity().String()
	want := []certstest.Request{
		{Authorization: "Bearer token", Cluster: "cluster1", TTL: time.Minute},
		{Authorization: "Bearer rotated", Cluster: "cluster1", TTL: time.Minute, Peer: id},
		{Cluster: "cluster1", TTL: time.Minute, Peer: id},
	}
	if diff := cmp.Diff(want, ca.Requests()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// TestTokenOfVolume: Kubernetes replaces the token by renaming the link ..data to another directory.
// Each request has the token of its time.
func TestTokenOfVolume(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	ca.Serve(t)
	c, dir := newClient(ca), t.TempDir()
	c.TokenFile = filepath.Join(dir, "istio-token")
	if err := os.Symlink(filepath.Join("..data", "istio-token"), c.TokenFile); err != nil {
		t.Fatal(err)
	}
	const swaps = 100
	for i := range swaps {
		version := fmt.Sprintf("..%d", i)
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "istio-token"), fmt.Sprintf("token-%d", i))
		next := filepath.Join(dir, "..data_tmp")
		if err := errors.Join(os.Symlink(version, next), os.Rename(next, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", i-1))); err != nil {
			t.Fatal(err)
		}
		if _, err := get(t, c, nil); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range ca.Requests() {
		if want := fmt.Sprintf("Bearer token-%d", i); r.Authorization != want {
			t.Errorf("request %d has %q, want %q", i, r.Authorization, want)
		}
	}
	if n := len(ca.Requests()); n != swaps {
		t.Errorf("%d requests, want %d", n, swaps)
	}
}

func mustKey(t *testing.T, c *Certificate) []byte {
	t.Helper()
	key, err := c.Key()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestClientKeyExchanges: the client uses only its configured key exchanges.
func TestClientKeyExchanges(t *testing.T) {
	pqc, classic := []tls.CurveID{tls.X25519MLKEM768}, []tls.CurveID{tls.X25519, tls.CurveP256}
	for _, server := range [][]tls.CurveID{pqc, classic} {
		ca := certstest.NewIstioCA(t)
		ca.KeyExchanges = server
		ca.Serve(t)
		for _, client := range [][]tls.CurveID{nil, pqc, classic} {
			c := newClient(ca)
			c.KeyExchanges = client
			_, err := get(t, c, nil)
			if fits := client == nil || client[0] == server[0]; fits != (err == nil) {
				t.Errorf("client %v, server %v: %v", client, server, err)
			}
		}
	}
}

func TestClientSignFails(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	stranger := certstest.NewIstioCA(t)
	ca.Serve(t)
	dir := t.TempDir()
	file := func(name, data string) string {
		path := filepath.Join(dir, name)
		write(t, path, data)
		return path
	}
	for name, tc := range map[string]struct {
		spoil func(c *Client)
		want  string
	}{
		"no root file":      {func(c *Client) { c.RootFile = filepath.Join(dir, "none") }, "none"},
		"bad root file":     {func(c *Client) { c.RootFile = file("junk", "junk") }, "junk"},
		"other root":        {func(c *Client) { c.RootFile = stranger.RootFile }, "unknown authority"},
		"other server name": {func(c *Client) { c.Servers[0].Name = "other.svc" }, "other.svc"},
		"no token":          {func(c *Client) { c.TokenFile = filepath.Join(dir, "missing") }, "missing"},
		"empty token":       {func(c *Client) { c.TokenFile = file("empty", " \n") }, "is empty"},
		"binary token":      {func(c *Client) { c.TokenFile = file("binary", "a\x00b") }, "does not hold a token"},
		"nobody there":      {func(c *Client) { c.Servers[0].Addr = "127.0.0.1:1" }, "127.0.0.1:1: Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(ca)
			tc.spoil(c)
			if _, err := get(t, c, nil); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	if n := len(ca.Requests()); n != 0 {
		t.Errorf("%d requests arrived: a token went to a server that was not verified", n)
	}
}

// TestNoTokenForStrangers: the token is not sent to a server without a valid certificate.
func TestNoTokenForStrangers(t *testing.T) {
	ca, stranger := certstest.NewIstioCA(t), certstest.NewIstioCA(t)
	stranger.Serve(t)
	for name, change := range map[string]func(*Client){
		"wrong certificate": func(*Client) {},
		"wrong name":        func(c *Client) { c.RootFile, c.Servers[0].Name = stranger.RootFile, "other.svc" },
	} {
		c := newClient(ca)
		c.Servers[0].Addr = stranger.Addr
		change(c)
		if _, err := get(t, c, nil); err == nil || strings.Contains(err.Error(), "accepted") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(stranger.Requests()); n != 0 {
		t.Errorf("%d requests arrived, each with the token", n)
	}
}

// An authority that has come to stand below another root is known by the roots
// of its last answer.
func TestRootsOfTheLastAnswer(t *testing.T) {
	ca, other := certstest.NewIstioCA(t), certstest.NewIstioCA(t)
	ca.Serve(t)
	first, err := get(t, newClient(ca), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(ca)
	c.RootFile = other.RootFile // older than the roots of the response
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, certstest.Identity())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sign(t.Context(), csr, time.Minute, Current{Certificate: first.client()}); err == nil {
		t.Error("the authority is trusted without a reason")
	}
	r, err := c.Sign(t.Context(), csr, time.Minute, Current{Certificate: first.client(), Roots: first.roots})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Roots) != 2 {
		t.Errorf("%d roots, want that of the answer and that of the file", len(r.Roots))
	}
}

func TestAnswersAreChecked(t *testing.T) {
	ca, stranger := certstest.NewIstioCA(t), certstest.NewIstioCA(t)
	ca.Serve(t)
	otherKey, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(a *certs.Authority, account string) string {
		id := certstest.Identity()
		id.ServiceAccount = account
		leaf, err := a.SignLeaf(otherKey.Public(), mesh.Caller{Identity: id}, time.Minute, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return string(certs.EncodeCerts(leaf))
	}
	for name, tc := range map[string]struct {
		answer func([]string) ([]string, error)
		want   string
	}{
		"refused":         {func([]string) ([]string, error) { return nil, errors.New("no such workload") }, "no such workload"},
		"empty":           {func([]string) ([]string, error) { return nil, nil }, "0 parts"},
		"leaf only":       {func(c []string) ([]string, error) { return c[:1], nil }, "1 parts"},
		"junk":            {func(c []string) ([]string, error) { return []string{c[0], "junk", c[2]}, nil }, "part 2"},
		"root only":       {func(c []string) ([]string, error) { return []string{c[2], c[2]}, nil }, "holds only roots"},
		"other root":      {func(c []string) ([]string, error) { return []string{sign(stranger.Authority, "client"), c[2]}, nil }, "another key"},
		"no intermediate": {func(c []string) ([]string, error) { return []string{c[0], c[2]}, nil }, "does not lead to a root"},
		"other key":       {func(c []string) ([]string, error) { return []string{sign(ca.Authority, "client"), c[1], c[2]}, nil }, "another key"},
	} {
		t.Run(name, func(t *testing.T) {
			ca.Answer = tc.answer
			if _, err := get(t, newClient(ca), nil); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("other identity", func(t *testing.T) {
		parsed, err := parseResponse([]string{sign(ca.Authority, "other"), string(certs.EncodeCerts(ca.Authority.Cert)), string(certs.EncodeCerts(ca.Root.Cert))}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := check(certstest.Identity(), otherKey, parsed, time.Now()); err == nil || !strings.Contains(err.Error(), "sa/other") {
			t.Errorf("got %v, want the identity named", err)
		}
	})
}

func FuzzParseResponse(f *testing.F) {
	f.Add("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "")
	f.Add("", "junk")
	f.Fuzz(func(t *testing.T, leaf, roots string) {
		r, err := parseResponse([]string{leaf, roots}, nil)
		if err == nil && len(r.Chain) == 0 {
			t.Error("an answer without certificate is accepted")
		}
	})
}

// TestClientFailsOver: after a call that found its server unavailable, the next call uses the
// next server, and later calls stay with it.
func TestClientFailsOver(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, nobody answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for name, address := range map[string]string{"refuses connections": "127.0.0.1:1", "does not answer": silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			ca := certstest.NewIstioCA(t)
			ca.Serve(t)
			c := newClient(ca)
			c.Servers = append([]Server{{address, certstest.ServerName}}, c.Servers...)
			if _, err := get(t, c, nil); status.Code(err) != codes.Unavailable {
				t.Fatalf("error %v, want Unavailable", err)
			}
			for range 2 {
				if _, err := get(t, c, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
