package ca

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// start is the initial time of tests.
var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// authorities returns a root and an intermediate with the lifetime.
func authorities(tb testing.TB, ttl time.Duration) (root, intermediate *certs.Authority) {
	tb.Helper()
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "CA", TTL: ttl}
	root, err := certs.NewRoot(spec, start, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	intermediate, err = root.NewIntermediate("cluster1", spec, start, rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return root, intermediate
}

func caller() mesh.Caller {
	return mesh.Caller{
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "sample", ServiceAccount: "helloworld"},
		Cluster:  "cluster1",
	}
}

func newCSR(tb testing.TB) string {
	tb.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		tb.Fatal(err)
	}
	csr, err := certs.NewCSR(key, mesh.Identity{})
	if err != nil {
		tb.Fatal(err)
	}
	return string(csr)
}

// tally counts calls of IssuerStats.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) count(what string) func() {
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.n == nil {
			c.n = map[string]int{}
		}
		c.n[what]++
	}
}

func (c *tally) stats() IssuerStats {
	return IssuerStats{
		Request:     c.count("request"),
		AuthFailure: c.count("auth failure"),
		ParseError:  c.count("parse error"),
		SignError:   func(reason string) { c.count(reason)() },
		Issued:      c.count("issued"),
	}
}

func issuerConfig(a *certs.Authority) IssuerConfig {
	return IssuerConfig{
		Authority:    a,
		Authenticate: func(context.Context) (mesh.Caller, error) { return caller(), nil },
		Now:          func() time.Time { return start },
		Rand:         rand.Reader,
		Log:          slog.New(slog.DiscardHandler),
	}
}

func newIssuer(tb testing.TB, cfg IssuerConfig) *Issuer {
	tb.Helper()
	i, err := NewIssuer(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return i
}

// dial serves i over a real gRPC connection.
func dial(t *testing.T, i *Issuer) securityv1alpha1.IstioCertificateServiceClient {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	i.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:ca",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return securityv1alpha1.NewIstioCertificateServiceClient(conn)
}

func parseOne(t *testing.T, data string) *x509.Certificate {
	t.Helper()
	list, err := certs.ParseCerts([]byte(data))
	if err != nil || len(list) != 1 {
		t.Fatalf("%d certificates, %v in\n%s", len(list), err, data)
	}
	return list[0]
}

// verifyChain verifies a response with its last certificate as the root.
func verifyChain(t *testing.T, chain []string, at time.Time) *x509.Certificate {
	t.Helper()
	leaf := parseOne(t, chain[0])
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(chain[len(chain)-1]))
	for _, c := range chain[1 : len(chain)-1] {
		between.AddCert(parseOne(t, c))
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{use},
		})
		if err != nil {
			t.Error(err)
		}
	}
	return leaf
}

func TestCreateCertificate(t *testing.T) {
	root, intermediate := authorities(t, 365*24*time.Hour)
	other, _ := authorities(t, time.Hour)
	twoRoots := *intermediate
	twoRoots.Roots = []*x509.Certificate{root.Cert, other.Cert}

	for name, test := range map[string]struct {
		authority *certs.Authority
		want      []string // after the leaf
	}{
		"intermediate": {intermediate, []string{pemOf(intermediate.Cert), pemOf(root.Cert)}},
		"root":         {root, []string{pemOf(root.Cert)}},
		"two roots":    {&twoRoots, []string{pemOf(intermediate.Cert), pemOf(root.Cert) + pemOf(other.Cert)}},
	} {
		t.Run(name, func(t *testing.T) {
			var counts tally
			cfg := issuerConfig(test.authority)
			cfg.Stats = counts.stats()
			client := dial(t, newIssuer(t, cfg))
			resp, err := client.CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{Csr: newCSR(t), ValidityDuration: 3600})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, resp.GetCertChain()[1:]); diff != "" {
				t.Error(diff)
			}
			for i, element := range resp.GetCertChain() {
				if !strings.HasSuffix(element, "-----END CERTIFICATE-----\n") {
					t.Errorf("element %d ends in %q", i, element[len(element)-30:])
				}
			}
			leaf := verifyChain(t, resp.GetCertChain(), start)
			if len(leaf.URIs) != 1 || leaf.URIs[0].String() != caller().Identity.String() {
				t.Errorf("names are %v", leaf.URIs)
			}
			if cluster, _ := certs.ClusterOf(leaf); cluster != "cluster1" {
				t.Errorf("cluster is %q", cluster)
			}
			if want := start.Add(time.Hour); !leaf.NotAfter.Equal(want) {
				t.Errorf("leaf ends %v, want %v", leaf.NotAfter, want)
			}
			if diff := cmp.Diff(map[string]int{"request": 1, "issued": 1}, counts.n); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func pemOf(c *x509.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
}

func TestLifeTimes(t *testing.T) {
	_, long := authorities(t, 365*24*time.Hour)
	_, short := authorities(t, time.Hour)
	const maxSeconds = 90 * 24 * 3600
	for name, test := range map[string]struct {
		authority *certs.Authority
		seconds   int64
		want      time.Duration // 0: refused
	}{
		"none":                          {long, 0, 24 * time.Hour},
		"negative":                      {long, -1, 24 * time.Hour},
		"most negative":                 {long, math.MinInt64, 24 * time.Hour},
		"a second":                      {long, 1, time.Second},
		"most":                          {long, maxSeconds, 90 * 24 * time.Hour},
		"a second more":                 {long, maxSeconds + 1, 0},
		"wraps to zero as nanoseconds":  {long, 1 << 55, 0},
		"wraps to little as nanosecond": {long, 1<<55 + 60, 0},
		"more than a Duration holds":    {long, math.MaxInt64 / int64(time.Second), 0},
		"largest":                       {long, math.MaxInt64, 0},
		"longer than the signer":        {short, 24 * 3600, time.Hour},
		"none, short signer":            {short, 0, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			i := newIssuer(t, issuerConfig(test.authority))
			resp, err := i.CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{Csr: newCSR(t), ValidityDuration: test.seconds})
			if test.want == 0 {
				if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "longer than the 2160h0m0s allowed") {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := parseOne(t, resp.GetCertChain()[0]).NotAfter.Sub(start); got != test.want {
				t.Errorf("lives %v, want %v", got, test.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	_, intermediate := authorities(t, time.Hour)
	for name, test := range map[string]struct {
		change func(*IssuerConfig)
		csr    string
		code   codes.Code
		text   string
		counts map[string]int
	}{
		"not authenticated": {
			func(c *IssuerConfig) {
				c.Authenticate = func(context.Context) (mesh.Caller, error) {
					return mesh.Caller{}, errors.New("token of issuer X is expired")
				}
			},
			newCSR(t), codes.Unauthenticated, "request authenticate failure",
			map[string]int{"auth failure": 1},
		},
		"nobody to ask": {
			func(c *IssuerConfig) {
				c.Authenticate = func(context.Context) (mesh.Caller, error) {
					return mesh.Caller{}, status.Error(codes.Unavailable, "try again")
				}
			},
			newCSR(t), codes.Unavailable, "try again",
			map[string]int{"auth failure": 1},
		},
		"bad request": {
			func(*IssuerConfig) {}, "junk", codes.InvalidArgument,
			`CSR signing error (certificate request does not start with a PEM block "CERTIFICATE REQUEST")`,
			map[string]int{"parse error": 1, "CSR_ERROR": 1},
		},
		"large request": {
			func(*IssuerConfig) {}, strings.Repeat("x", 1<<20), codes.InvalidArgument,
			"CSR signing error (certificate request has 1048576 bytes, more than the 16384 allowed)",
			map[string]int{"parse error": 1, "CSR_ERROR": 1},
		},
		"caller without identity": {
			func(c *IssuerConfig) {
				c.Authenticate = func(context.Context) (mesh.Caller, error) { return mesh.Caller{}, nil }
			},
			newCSR(t), codes.Internal,
			`CSR signing error (sign certificate: identity "spiffe:///ns//sa/": "" is not a SPIFFE trust domain)`,
			map[string]int{"CERT_GEN_ERROR": 1},
		},
		"expired signer": {
			func(c *IssuerConfig) { c.Now = func() time.Time { return start.Add(2 * time.Hour) } },
			newCSR(t), codes.Internal,
			`CSR signing error (signing certificate: "CN=CA,L=cluster1" expired at 2026-11-20T13:00:00Z)`,
			map[string]int{"CERT_GEN_ERROR": 1},
		},
		"no randomness": {
			func(c *IssuerConfig) { c.Rand = iotest.ErrReader(errors.New("no entropy")) },
			newCSR(t), codes.Internal, "CSR signing error (make serial number: no entropy)",
			map[string]int{"CERT_GEN_ERROR": 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var counts tally
			cfg := issuerConfig(intermediate)
			cfg.Stats = counts.stats()
			test.change(&cfg)
			client := dial(t, newIssuer(t, cfg))
			_, err := client.CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{Csr: test.csr})
			if status.Code(err) != test.code || status.Convert(err).Message() != test.text {
				t.Errorf("error is %v\nwant %v: %s", err, test.code, test.text)
			}
			test.counts["request"] = 1
			if diff := cmp.Diff(test.counts, counts.n); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestImpersonation: requests for certificates of other identities are refused without
// a reason.
func TestImpersonation(t *testing.T) {
	_, intermediate := authorities(t, time.Hour)
	client := dial(t, newIssuer(t, issuerConfig(intermediate)))
	md, err := structpb.NewStruct(map[string]any{"ImpersonatedIdentity": "spiffe://cluster.local/ns/sample/sa/other"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{Csr: newCSR(t), Metadata: md})
	if st := status.Convert(err); st.Code() != codes.Unauthenticated || st.Message() != "request impersonation authentication failure" {
		t.Errorf("error is %v", err)
	}
}

// TestAuthenticateSeesTheCall: Authenticate determines the caller from the metadata of
// the call. The request has no influence.
func TestAuthenticateSeesTheCall(t *testing.T) {
	_, intermediate := authorities(t, time.Hour)
	cfg := issuerConfig(intermediate)
	cfg.Authenticate = func(ctx context.Context) (mesh.Caller, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		c := caller()
		c.Identity.ServiceAccount = strings.Join(md.Get("authorization"), "")
		return c, nil
	}
	client := dial(t, newIssuer(t, cfg))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "from-the-call")
	resp, err := client.CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: newCSR(t)})
	if err != nil {
		t.Fatal(err)
	}
	if got := parseOne(t, resp.GetCertChain()[0]).URIs[0].Path; got != "/ns/sample/sa/from-the-call" {
		t.Errorf("path is %s", got)
	}
}

// blocking is a source of randomness that blocks, and signing with it.
type blocking struct {
	entered chan struct{}
	leave   chan struct{}
}

func (b blocking) Read(p []byte) (int, error) {
	b.entered <- struct{}{}
	<-b.leave
	return rand.Read(p)
}

// TestSigningIsBounded: at most one request per processor is signed at once. A waiting
// request ends with its caller.
func TestSigningIsBounded(t *testing.T) {
	_, intermediate := authorities(t, time.Hour)
	cfg := issuerConfig(intermediate)
	var callers atomic.Int64
	cfg.Authenticate = func(context.Context) (mesh.Caller, error) {
		return mesh.Caller{Identity: identity(int(callers.Add(1)))}, nil
	}
	b := blocking{entered: make(chan struct{}), leave: make(chan struct{})}
	cfg.Rand = b
	i := newIssuer(t, cfg)
	req := &securityv1alpha1.IstioCertificateRequest{Csr: newCSR(t)}

	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			if _, err := i.CreateCertificate(t.Context(), req); err != nil {
				t.Error(err)
			}
		})
		<-b.entered
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := i.CreateCertificate(ctx, req); status.Code(err) != codes.Canceled {
		t.Errorf("error is %v, want Canceled", err)
	}
	close(b.leave)
	wg.Wait()
	for n := range runtime.GOMAXPROCS(0) {
		if _, err := i.queue.take(t.Context(), identity(1000+n)); err != nil {
			t.Errorf("the queue still holds something: %v", err)
		}
	}
}

func TestSetAuthority(t *testing.T) {
	_, before := authorities(t, time.Hour)
	_, after := authorities(t, time.Hour)
	i := newIssuer(t, issuerConfig(before))
	i.SetAuthority(after)
	chain, err := i.Sign([]byte(newCSR(t)), caller(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if !parseOne(t, chain[1]).Equal(after.Cert) {
		t.Error("signed by the authority before")
	}
	verifyChain(t, chain, start)
}

func TestWithoutAuthority(t *testing.T) {
	var counts tally
	cfg := issuerConfig(nil)
	cfg.Stats = counts.stats()
	i := newIssuer(t, cfg)
	_, err := i.CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{Csr: newCSR(t)})
	if status.Code(err) != codes.Internal || counts.n[reasonCA] != 1 {
		t.Errorf("error is %v, counted %v", err, counts.n)
	}
	if _, err := i.ServingCertificate(); err == nil {
		t.Error("got a serving certificate without a signer")
	}
}

func TestNewNeedsItsParts(t *testing.T) {
	_, intermediate := authorities(t, time.Hour)
	for name, drop := range map[string]func(*IssuerConfig){
		"Authenticate": func(c *IssuerConfig) { c.Authenticate = nil },
		"Now":          func(c *IssuerConfig) { c.Now = nil },
		"Rand":         func(c *IssuerConfig) { c.Rand = nil },
		"Log":          func(c *IssuerConfig) { c.Log = nil },
	} {
		cfg := issuerConfig(intermediate)
		drop(&cfg)
		if _, err := NewIssuer(cfg); err == nil {
			t.Errorf("no error without %s", name)
		}
	}
}
