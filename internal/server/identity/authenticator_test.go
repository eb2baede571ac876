package identity

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// testMesh is a mesh of two clusters, each with a token issuer and an intermediate of
// one root; an alias trust domain, other.example, with its own root; and an untrusted
// root. Tests may change its clock and roots at any time.
type testMesh struct {
	root, east, west, alias, stranger *certs.Authority
	eastTokens, westTokens            *token.Issuer
	now                               atomic.Pointer[time.Time]
	pools                             atomic.Pointer[map[string]*x509.CertPool]
	log                               bytes.Buffer // read it after stop
	cfg                               Config
}

func newTestMesh(t testing.TB) *testMesh {
	t.Helper()
	ca := func(name string) certs.CASpec {
		return certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: name, TTL: 24 * time.Hour}
	}
	w := &testMesh{
		root:       must(certs.NewRoot(ca("root"), start, rand.Reader))(t),
		alias:      must(certs.NewRoot(ca("alias"), start, rand.Reader))(t),
		stranger:   must(certs.NewRoot(ca("root"), start, rand.Reader))(t),
		eastTokens: must(token.GenerateIssuer("https://east.example"))(t),
		westTokens: must(token.GenerateIssuer("https://west.example"))(t),
	}
	w.east = must(w.root.NewIntermediate("east", ca("east"), start, rand.Reader))(t)
	w.west = must(w.root.NewIntermediate("west", ca("west"), start, rand.Reader))(t)
	w.setTime(start)
	w.setRoots(w.root)
	w.cfg = Config{
		TrustDomain:        "cluster.local",
		TrustDomainAliases: []string{"other.example", "rootless.example"},
		Roots:              func(td string) *x509.CertPool { return (*w.pools.Load())[td] },
		IssuerCluster: func(ca *x509.Certificate) mesh.ClusterID {
			return map[string]mesh.ClusterID{
				certs.Fingerprint(w.east.Cert): "east", certs.Fingerprint(w.west.Cert): "west",
			}[certs.Fingerprint(ca)]
		},
		Tokens: map[mesh.ClusterID][]TokenVerifier{
			"east": {verifier(must(token.GenerateIssuer(""))(t)), verifier(w.eastTokens)},
			"west": {verifier(w.westTokens)},
		},
		Now: func() time.Time { return *w.now.Load() },
		Log: slog.New(slog.NewTextHandler(&w.log, nil)),
	}
	return w
}

func verifier(i *token.Issuer) TokenVerifier {
	return &token.Verifier{Issuer: i.URL(), Keys: i.JWKS(), Audiences: []string{"istio-ca"}}
}

func (w *testMesh) setTime(at time.Time) { w.now.Store(&at) }

func (w *testMesh) setRoots(root *certs.Authority) {
	pools := map[string]*x509.CertPool{"cluster.local": x509.NewCertPool(), "other.example": x509.NewCertPool()}
	pools["cluster.local"].AddCert(root.Cert)
	pools["other.example"].AddCert(w.alias.Cert)
	w.pools.Store(&pools)
}

// leaf returns a certificate as the control plane issues it.
func (w *testMesh) leaf(t testing.TB, by *certs.Authority, caller mesh.Caller) *tls.Certificate {
	t.Helper()
	key := must(certs.GenerateKey(certs.ECDSAP256))(t)
	return pair(by, must(by.SignLeaf(key.Public(), caller, time.Hour, start, rand.Reader))(t), key)
}

// raw returns a certificate with any content.
func raw(t testing.TB, by *certs.Authority, change func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7),
		NotBefore:    start.Add(-time.Minute),
		NotAfter:     start.Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:         []*url.URL{uri(t, "spiffe://cluster.local/ns/sample/sa/helloworld")},
	}
	change(template)
	key := must(certs.GenerateKey(certs.ECDSAP256))(t)
	der := must(x509.CreateCertificate(rand.Reader, template, by.Cert, key.Public(), by.Key))(t)
	return pair(by, must(x509.ParseCertificate(der))(t), key)
}

func uri(t testing.TB, s string) *url.URL {
	t.Helper()
	return must(url.Parse(s))(t)
}

func pair(by *certs.Authority, leaf *x509.Certificate, key crypto.Signer) *tls.Certificate {
	c := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
	for _, above := range by.Chain {
		c.Certificate = append(c.Certificate, above.Raw)
	}
	return c
}

func (w *testMesh) token(t testing.TB, i *token.Issuer, audience string) string {
	t.Helper()
	return must(i.Create(token.Claims{
		Namespace: "sample", ServiceAccount: "helloworld", Audiences: []string{audience}, TTL: 12 * time.Hour,
	}, start))(t)
}

// testServer is a gRPC server that authenticates the caller of every method.
type testServer struct {
	addr    string
	results chan result // what the handler got, in order
	stop    func()
}

type result struct {
	caller mesh.Caller
	err    error
}

// result returns the result of the last authentication.
func (s *testServer) result(t testing.TB) result {
	t.Helper()
	select {
	case r := <-s.results:
		return r
	case <-time.After(2 * time.Minute):
		t.Fatal("the call reached no handler")
		return result{}
	}
}

func (w *testMesh) serve(t testing.TB, creds func(*Authenticator) credentials.TransportCredentials) *testServer {
	t.Helper()
	a := must(New(w.cfg))(t)
	s := &testServer{results: make(chan result, 1)}
	g := grpc.NewServer(grpc.Creds(creds(a)), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		caller, err := a.Authenticate(stream.Context())
		s.results <- result{caller, err}
		if err != nil {
			return err
		}
		return stream.SendMsg(&emptypb.Empty{})
	}))
	lis := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	s.addr = lis.Addr().String()
	done := make(chan error, 1)
	go func() { done <- g.Serve(lis) }()
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		g.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
	t.Cleanup(s.stop)
	return s
}

// serveTLS starts the server with the TLS configuration of the control plane.
func (w *testMesh) serveTLS(t testing.TB) *testServer {
	t.Helper()
	key := must(certs.GenerateKey(certs.ECDSAP256))(t)
	cert := pair(w.east, must(w.east.SignServer(key.Public(), []string{"127.0.0.1"}, 20*time.Hour, start, rand.Reader))(t), key)
	return w.serve(t, func(a *Authenticator) credentials.TransportCredentials {
		return credentials.NewTLS(a.TLSConfig(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil }, 0))
	})
}

func (w *testMesh) dial(t testing.TB, s *testServer, cert *tls.Certificate) *grpc.ClientConn {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(w.root.Cert)
	cfg := &tls.Config{RootCAs: roots, Time: w.cfg.Now, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	if cert != nil {
		// Given whatever the server asks for, as an attacker would.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	conn := must(grpc.NewClient(s.addr, grpc.WithTransportCredentials(credentials.NewTLS(cfg))))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// call calls a method and returns the error that the client gets.
func call(t testing.TB, conn *grpc.ClientConn, headers ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, headers...)
	return conn.Invoke(ctx, "/test.Who/AmI", &emptypb.Empty{}, &emptypb.Empty{})
}

func caller(trustDomain, namespace, account string, cluster mesh.ClusterID) mesh.Caller {
	return mesh.Caller{
		Identity: mesh.Identity{TrustDomain: trustDomain, Namespace: namespace, ServiceAccount: account},
		Cluster:  cluster,
	}
}

// checkRefused checks that a refused caller learns nothing, and that the log has the
// reasons.
func checkRefused(t testing.TB, clientErr, logErr error, want ...string) {
	t.Helper()
	st := status.Convert(clientErr)
	if st.Code() != codes.Unauthenticated || st.Message() != "request authenticate failure" {
		t.Errorf("client sees %v", clientErr)
	}
	var e *Error
	if !errors.As(logErr, &e) || strings.Contains(logErr.Error(), "\n") {
		t.Fatalf("error for the log: %v", logErr)
	}
	for _, text := range want {
		if !strings.Contains(logErr.Error(), text) {
			t.Errorf("error for the log %q: want %q", logErr, text)
		}
	}
}

func TestCertificateAccepted(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	hello := func(cluster mesh.ClusterID) mesh.Caller {
		return caller("cluster.local", "sample", "helloworld", cluster)
	}
	tests := map[string]struct {
		cert *tls.Certificate
		want mesh.Caller
	}{
		"names its cluster":                   {w.leaf(t, w.east, hello("east")), hello("east")},
		"names a cluster that east serves":    {w.leaf(t, w.east, hello("remote")), hello("remote")},
		"without cluster, intermediate known": {w.leaf(t, w.west, hello("")), hello("west")},
		"without cluster, by the root":        {w.leaf(t, w.root, hello("")), hello("")},
		"of an alias, with its own root":      {w.leaf(t, w.alias, caller("other.example", "a", "b", "")), caller("other.example", "a", "b", "")},
		"without extended key usage":          {raw(t, w.east, func(c *x509.Certificate) { c.ExtKeyUsage = nil }), hello("east")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.serveTLS(t)
			// An invalid token does not matter with a valid certificate.
			if err := call(t, w.dial(t, s, tt.cert), "authorization", "Bearer x"); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, s.result(t).caller); diff != "" {
				t.Errorf("caller (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCertificateRefused: the handshake fails with an invalid certificate, even if
// the caller also sends a valid token.
func TestCertificateRefused(t *testing.T) {
	t.Parallel()
	hello := caller("cluster.local", "sample", "helloworld", "east")
	named := func(ids ...string) func(*testing.T, *testMesh) *tls.Certificate {
		return func(t *testing.T, w *testMesh) *tls.Certificate {
			return raw(t, w.east, func(c *x509.Certificate) {
				c.URIs = nil
				for _, id := range ids {
					c.URIs = append(c.URIs, uri(t, id))
				}
			})
		}
	}
	changed := func(change func(*x509.Certificate)) func(*testing.T, *testMesh) *tls.Certificate {
		return func(t *testing.T, w *testMesh) *tls.Certificate { return raw(t, w.east, change) }
	}
	const good = "spiffe://cluster.local/ns/sample/sa/helloworld"
	tests := map[string]struct {
		cert func(*testing.T, *testMesh) *tls.Certificate
		want string
	}{
		"SHA-1":                    {changed(func(c *x509.Certificate) { c.SignatureAlgorithm = x509.ECDSAWithSHA1 }), "insecure algorithm"},
		"two URIs":                 {named(good, good), "2 URI names"},
		"no URI":                   {named(), "0 URI names"},
		"CA":                       {changed(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }), "may sign"},
		"keyCertSign":              {changed(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }), "may sign"},
		"cRLSign":                  {changed(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }), "may sign"},
		"no key usage":             {changed(func(c *x509.Certificate) { c.KeyUsage = 0 }), "digitalSignature"},
		"only keyEncipherment":     {changed(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment }), "digitalSignature"},
		"not yet valid":            {changed(func(c *x509.Certificate) { c.NotBefore = start.Add(time.Minute) }), "not yet valid"},
		"expired":                  {changed(func(c *x509.Certificate) { c.NotAfter = start.Add(-time.Second) }), "expired"},
		"for servers only":         {changed(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), "key usage"},
		"unknown critical":         {changed(unknownCritical), "unhandled critical extension"},
		"empty segment":            {named("spiffe://cluster.local/ns//sa/b"), "namespace"},
		"dot segment":              {named("spiffe://cluster.local/ns/./sa/b"), "namespace"},
		"dots segment":             {named("spiffe://cluster.local/ns/../sa/b"), "namespace"},
		"query":                    {named(good + "?a=b"), "service account"},
		"empty query":              {named(good + "?"), "service account"},
		"fragment":                 {named(good + "#a"), "service account"},
		"port":                     {named("spiffe://cluster.local:80/ns/a/sa/b"), "trust domain"},
		"user":                     {named("spiffe://u@cluster.local/ns/a/sa/b"), "trust domain"},
		"upper-case trust domain":  {named("spiffe://Cluster.local/ns/a/sa/b"), "trust domain"},
		"upper-case scheme":        {changed(writtenName("SPIFFE" + strings.TrimPrefix(good, "spiffe"))), "does not start with spiffe://"},
		"percent escape":           {named("spiffe://cluster.local/ns/%61/sa/b"), "namespace"},
		"escaped slash":            {named("spiffe://cluster.local/ns/a%2fsa%2fb"), "want spiffe://"},
		"too long":                 {named("spiffe://cluster.local/ns/a/sa/" + strings.Repeat("b", 2048)), "longer than 2048"},
		"more segments":            {named(good + "/c"), "want spiffe://"},
		"https":                    {named("https://cluster.local/ns/a/sa/b"), "does not start with spiffe://"},
		"unknown trust domain":     {named("spiffe://evil.example/ns/a/sa/b"), "no roots for its trust domain"},
		"alias by the mesh's root": {named("spiffe://other.example/ns/a/sa/b"), "unknown authority"},
		"alias without roots":      {named("spiffe://rootless.example/ns/a/sa/b"), "no roots"},
		"own by the alias's root":  {func(t *testing.T, w *testMesh) *tls.Certificate { return w.leaf(t, w.alias, hello) }, "unknown authority"},
		"root of the same name":    {func(t *testing.T, w *testMesh) *tls.Certificate { return w.leaf(t, w.stranger, hello) }, "unknown authority"},
		"without its intermediate": {func(t *testing.T, w *testMesh) *tls.Certificate {
			c := w.leaf(t, w.east, hello)
			c.Certificate = c.Certificate[:1]
			return c
		}, "unknown authority"},
		"under a leaf": {func(t *testing.T, w *testMesh) *tls.Certificate {
			c := w.leaf(t, w.east, hello)
			parent := must(x509.ParseCertificate(c.Certificate[0]))(t)
			fake := &certs.Authority{Cert: parent, Key: c.PrivateKey.(crypto.Signer), Chain: append([]*x509.Certificate{parent}, w.east.Chain...)}
			return raw(t, fake, func(*x509.Certificate) {})
		}, "cannot sign this kind"},
		"endless chain": {func(t *testing.T, w *testMesh) *tls.Certificate {
			c := w.leaf(t, w.east, hello)
			for len(c.Certificate) <= maxChain {
				c.Certificate = append(c.Certificate, w.east.Cert.Raw)
			}
			return c
		}, "11 certificates presented"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestMesh(t)
			s := w.serveTLS(t)
			err := call(t, w.dial(t, s, tt.cert(t, w)), "authorization", "Bearer "+w.token(t, w.eastTokens, "istio-ca"))
			if status.Code(err) != codes.Unavailable {
				t.Errorf("client sees %v, want a failed handshake", err)
			}
			s.stop()
			if len(s.results) != 0 {
				t.Error("the handler ran")
			}
			if !strings.Contains(w.log.String(), tt.want) {
				t.Errorf("log %q: want %q", w.log.String(), tt.want)
			}
		})
	}
}

// writtenName sets the URI name of a certificate to bytes that crypto/x509 would
// normalize.
func writtenName(uri string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		const tagURI = 6
		names, err := asn1.Marshal([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: tagURI, Bytes: []byte(uri)}})
		if err != nil {
			panic(err)
		}
		c.URIs = nil
		c.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 17}, Critical: true, Value: names}}
	}
}

func unknownCritical(c *x509.Certificate) {
	c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 3, 6, 1, 4, 1, 99999, 1}, Critical: true, Value: []byte{5, 0}}}
}

func TestTokenAccepted(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	east, west := w.token(t, w.eastTokens, "istio-ca"), w.token(t, w.westTokens, "istio-ca")
	tests := map[string]struct {
		headers []string
		cluster mesh.ClusterID
	}{
		"Bearer":                     {[]string{"authorization", "Bearer " + east}, "east"},
		"Istio":                      {[]string{"authorization", "Istio " + east}, "east"},
		"scheme in lower case":       {[]string{"authorization", "bearer " + east}, "east"},
		"cluster told by the issuer": {[]string{"authorization", "Bearer " + west}, "west"},
		"cluster named":              {[]string{"authorization", "Bearer " + west, "clusterid", "west"}, "west"},
		"cluster named by Istio":     {[]string{"authorization", "Bearer " + west, "ClusterID", "west"}, "west"},
		"cluster named empty":        {[]string{"authorization", "Bearer " + west, "clusterid", ""}, "west"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.serveTLS(t)
			if err := call(t, w.dial(t, s, nil), tt.headers...); err != nil {
				t.Fatal(err)
			}
			want := caller("cluster.local", "sample", "helloworld", tt.cluster)
			if diff := cmp.Diff(want, s.result(t).caller); diff != "" {
				t.Errorf("caller (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTokenRefused: calls without a valid token of the right cluster fail.
func TestTokenRefused(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	east := w.token(t, w.eastTokens, "istio-ca")
	tests := map[string]struct {
		headers []string
		want    []string
	}{
		"no credentials":      {nil, []string{"client certificate: none presented", "token: 0 authorization headers"}},
		"forwarded identity":  {[]string{"x-forwarded-client-cert", "URI=spiffe://cluster.local/ns/sample/sa/helloworld"}, []string{"0 authorization headers"}},
		"two tokens":          {[]string{"authorization", "Bearer " + east, "authorization", "Bearer x"}, []string{"2 authorization headers"}},
		"other scheme":        {[]string{"authorization", "Basic " + east}, []string{"neither Bearer nor Istio"}},
		"no scheme":           {[]string{"authorization", east}, []string{"neither Bearer nor Istio"}},
		"empty token":         {[]string{"authorization", "Bearer "}, []string{`cluster "east"`, `cluster "west"`}},
		"text after token":    {[]string{"authorization", "Bearer " + east + " x"}, []string{"compact form"}},
		"wrong audience":      {[]string{"authorization", "Bearer " + w.token(t, w.eastTokens, "vault")}, []string{"aud is"}},
		"untrusted issuer":    {[]string{"authorization", "Bearer " + w.token(t, must(token.GenerateIssuer("https://east.example"))(t), "istio-ca")}, []string{"unknown key id"}},
		"huge token":          {[]string{"authorization", "Bearer " + strings.Repeat("a", 1<<20)}, []string{"1048576 bytes long"}},
		"other cluster":       {[]string{"authorization", "Bearer " + east, "clusterid", "west"}, []string{`cluster "west"`, "unknown key id"}},
		"unknown cluster":     {[]string{"authorization", "Bearer " + east, "clusterid", "north"}, []string{`client claims to be in cluster "north", but token issuers are trusted for ["east" "west"] only`}},
		"two clusters":        {[]string{"authorization", "Bearer " + east, "clusterid", "east", "clusterid", "west"}, []string{"2 clusterid headers"}},
		"huge cluster header": {[]string{"authorization", "Bearer " + east, "clusterid", strings.Repeat("x", 10_000)}, []string{"client claims to be in cluster"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.serveTLS(t)
			err := call(t, w.dial(t, s, nil), tt.headers...)
			got := s.result(t)
			checkRefused(t, err, got.err, tt.want...)
			if got.caller != (mesh.Caller{}) {
				t.Errorf("caller %+v with an error", got.caller)
			}
			if len(got.err.Error()) > 2000 || strings.Contains(got.err.Error(), east) {
				t.Errorf("error for the log: %v", got.err)
			}
		})
	}
}

func TestTokenOfAnIssuerOfTwoClusters(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	w.cfg.Tokens["west"] = w.cfg.Tokens["east"]
	s := w.serveTLS(t)
	conn := w.dial(t, s, nil)
	bearer := "Bearer " + w.token(t, w.eastTokens, "istio-ca")
	err := call(t, conn, "authorization", bearer)
	checkRefused(t, err, s.result(t).err, `clusters "east" and "west"`)
	if err := call(t, conn, "authorization", bearer, "clusterid", "west"); err != nil {
		t.Fatal(err)
	}
	if got := s.result(t).caller.Cluster; got != "west" {
		t.Errorf("cluster %q", got)
	}
}

func TestNoTokenIssuers(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	w.cfg.Tokens = nil
	s := w.serveTLS(t)
	err := call(t, w.dial(t, s, nil), "authorization", "Bearer x", "clusterid", "east")
	checkRefused(t, err, s.result(t).err, "no token issuer is trusted")
}

// TestCertificateExpiresOnTheConnection: a certificate stops counting when it expires,
// even on a connection that lives on.
func TestCertificateExpiresOnTheConnection(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	s := w.serveTLS(t)
	want := caller("cluster.local", "sample", "helloworld", "east")
	cert := w.leaf(t, w.east, want)
	conn := w.dial(t, s, cert)
	if err := call(t, conn); err != nil {
		t.Fatal(err)
	}
	s.result(t)

	w.setTime(start.Add(2 * time.Hour))
	err := call(t, conn)
	checkRefused(t, err, s.result(t).err, "expired", "0 authorization headers")
	bearer := "Bearer " + w.token(t, w.eastTokens, "istio-ca")
	if err := call(t, conn, "authorization", bearer); err != nil {
		t.Errorf("token on the same connection: %v", err)
	}
	if got := s.result(t).caller; got != want {
		t.Errorf("caller by token %+v", got)
	}
	if err := call(t, w.dial(t, s, cert), "authorization", bearer); status.Code(err) != codes.Unavailable {
		t.Errorf("new connection with the expired certificate: %v", err)
	}
	if err := call(t, w.dial(t, s, nil), "authorization", bearer); err != nil {
		t.Errorf("new connection without it: %v", err)
	}
	s.result(t)
}

// TestRootsChange: handshakes and calls use the current roots.
func TestRootsChange(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	s := w.serveTLS(t)
	want := caller("cluster.local", "sample", "helloworld", "east")
	old, fresh := w.leaf(t, w.east, want), w.leaf(t, w.stranger, want)
	conn := w.dial(t, s, old)
	if err := call(t, conn); err != nil {
		t.Fatal(err)
	}
	s.result(t)
	w.setRoots(w.stranger)
	err := call(t, conn)
	checkRefused(t, err, s.result(t).err, "unknown authority")
	if err := call(t, w.dial(t, s, old)); status.Code(err) != codes.Unavailable {
		t.Errorf("handshake with the old root: %v", err)
	}
	if err := call(t, w.dial(t, s, fresh)); err != nil {
		t.Errorf("handshake with the new root: %v", err)
	}
	s.result(t)
}

func TestPlaintextIsNobody(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	s := w.serve(t, func(*Authenticator) credentials.TransportCredentials { return insecure.NewCredentials() })
	conn := must(grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	err := call(t, conn, "authorization", "Bearer "+w.token(t, w.eastTokens, "istio-ca"))
	checkRefused(t, err, s.result(t).err, "not TLS")
	a := must(New(w.cfg))(t)
	if _, err := a.Authenticate(t.Context()); err == nil {
		t.Error("a context without a peer is somebody")
	}
}

// TestPathWithoutSlash: a method path without its slash reaches no handler.
func TestPathWithoutSlash(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	s := w.serveTLS(t)
	conn := w.dial(t, s, w.leaf(t, w.east, caller("cluster.local", "sample", "helloworld", "east")))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := conn.Invoke(ctx, "test.Who/AmI", &emptypb.Empty{}, &emptypb.Empty{})
	if err == nil {
		t.Error("the call went through")
	}
	s.stop()
	if len(s.results) != 0 {
		t.Error("the handler ran")
	}
}

func TestTLSConfig(t *testing.T) {
	t.Parallel()
	w := newTestMesh(t)
	a := must(New(w.cfg))(t)
	key := must(certs.GenerateKey(certs.ECDSAP256))(t)
	cert := pair(w.east, must(w.east.SignServer(key.Public(), []string{"127.0.0.1"}, time.Hour, start, rand.Reader))(t), key)
	get := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil }
	tests := map[string]struct {
		server, client uint16
		protos         []string
		ok             bool
	}{
		"1.3":                {0, tls.VersionTLS13, []string{"h2"}, true},
		"1.2 is too old":     {0, tls.VersionTLS12, []string{"h2"}, false},
		"1.2 where admitted": {tls.VersionTLS12, tls.VersionTLS12, []string{"h2"}, true},
		"1.1 never":          {tls.VersionTLS12, tls.VersionTLS11, []string{"h2"}, false},
		"other protocol":     {0, tls.VersionTLS13, []string{"postgresql"}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			roots := x509.NewCertPool()
			roots.AddCert(w.root.Cert)
			sessions := tls.NewLRUClientSessionCache(1)
			cfg := &tls.Config{
				RootCAs: roots, ServerName: "127.0.0.1", Time: w.cfg.Now, NextProtos: tt.protos,
				MinVersion: tls.VersionTLS10, MaxVersion: tt.client, ClientSessionCache: sessions,
			}
			for range 2 {
				state, err := handshake(t, a.TLSConfig(get, tt.server), cfg)
				if (err == nil) != tt.ok {
					t.Fatalf("handshake: %v, want ok %t", err, tt.ok)
				}
				if tt.ok && (state.NegotiatedProtocol != "h2" || state.DidResume) {
					t.Errorf("protocol %q, resumed %t", state.NegotiatedProtocol, state.DidResume)
				}
			}
		})
	}
}

// handshake returns the state of the client after the handshake and one byte each
// way.
func handshake(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	lis := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	done := make(chan error, 1)
	go func() {
		conn, err := lis.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		_, err = tls.Server(conn, server).Write([]byte{1})
		done <- err
	}()
	defer func() {
		_ = lis.Close()
		<-done
	}()
	raw := must(net.Dial("tcp", lis.Addr().String()))(t)
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, client)
	_, err := conn.Read(make([]byte, 1))
	return conn.ConnectionState(), err
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*Config)
		want   string
	}{
		"no roots":         {func(c *Config) { c.Roots = nil }, "Roots"},
		"no clock":         {func(c *Config) { c.Now = nil }, "Now"},
		"no trust domain":  {func(c *Config) { c.TrustDomain = "" }, `trust domain ""`},
		"alias with slash": {func(c *Config) { c.TrustDomainAliases = []string{"a/b"} }, `trust domain "a/b"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := newTestMesh(t).cfg
			tt.change(&cfg)
			if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// TestCopiedIssuer: another cluster that publishes the keys of the control plane's cluster does not
// prevent that the tokens of this cluster count without the name of a cluster.
func TestCopiedIssuer(t *testing.T) {
	t.Parallel()
	for _, local := range []mesh.ClusterID{"east", ""} {
		w := newTestMesh(t)
		w.cfg.Local = local
		w.cfg.Tokens["west"] = append(w.cfg.Tokens["west"], verifier(w.eastTokens))
		a := must(New(w.cfg))(t)
		got, err := a.AuthenticateToken(t.Context(), w.token(t, w.eastTokens, "istio-ca"), "")
		if local != "" && (err != nil || got.Cluster != local) {
			t.Errorf("a token of the own cluster: %+v, %v", got, err)
		}
		if local == "" && (err == nil || !strings.Contains(err.Error(), `clusters "east" and "west" have the same issuer`)) {
			t.Errorf("a token of two clusters: %+v, %v", got, err)
		}
	}
}
