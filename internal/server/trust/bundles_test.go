package trust

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/bundle"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

// endpoint is a bundle endpoint; tests may change its responses.
type endpoint struct {
	*httptest.Server
	answer atomic.Pointer[http.HandlerFunc]
	asked  chan struct{} // has one for each request
}

// serveEndpoint starts an endpoint with the certificate, or with a web certificate for
// nil.
func serveEndpoint(t *testing.T, cert *tls.Certificate) *endpoint {
	t.Helper()
	e := &endpoint{asked: make(chan struct{}, 1000)}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*e.answer.Load())(w, r)
		e.asked <- struct{}{}
	}))
	if cert != nil {
		e.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12}
	}
	e.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	e.StartTLS()
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) say(h http.HandlerFunc) { e.answer.Store(&h) }

func (e *endpoint) give(doc []byte) {
	e.say(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(doc) })
}

// webRoots returns the root of the endpoint's web certificate.
func (e *endpoint) webRoots() []byte { return certs.EncodeCerts(e.Certificate()) }

// document returns a SPIFFE bundle with a refresh hint of one second.
func document(t testing.TB, sequence uint64, roots ...*x509.Certificate) []byte {
	t.Helper()
	b, err := bundle.Parse(certs.EncodeCerts(roots...))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := b.SPIFFE(sequence, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// run follows sources until the test ends. The channel gets an element for each change.
func run(t *testing.T, change func(*Config)) (*Bundles, <-chan struct{}) {
	t.Helper()
	changes := make(chan struct{}, 100)
	cfg := Config{
		Guard: dial.Guard{Loopback: true}, Changed: func() { changes <- struct{}{} },
		Now: time.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	change(&cfg)
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f, changes
}

func wait[T any](t *testing.T, c <-chan T, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("no %s", what)
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s", what)
		}
	}
}

// rootOf returns a root with a change.
func rootOf(t testing.TB, change func(*x509.Certificate)) *x509.Certificate {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// TestEndpointGoesBad: after a bad response of the endpoint the last good bundle
// stays, the status has the reason, and the next good bundle comes into use.
func TestEndpointGoesBad(t *testing.T) {
	root, next := certstest.NewRoot(t).Cert, certstest.NewRoot(t).Cert
	e := serveEndpoint(t, nil)
	e.give(document(t, 1, root))
	source := Source{TrustDomain: "b.example", URL: e.URL + "/bundle", Via: "--federate"}
	changes := make(chan struct{}, 100)
	f, err := New(Config{
		Sources: []Source{source}, WebRoots: e.webRoots(), Guard: dial.Guard{Loopback: true}, Changed: func() { changes <- struct{}{} },
		Now: time.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if known, ok := f.Domains()["b.example"]; !ok || len(known) != 0 {
		t.Errorf("at the start there are %d roots, want none of a domain that is known", len(known))
	}
	if _, good := f.ask(t.Context(), source, nil); !good || len(changes) != 1 {
		t.Fatalf("%+v, %d changes", f.Status(), len(changes))
	}
	<-changes

	uri, err := url.Parse("spiffe://c.example")
	if err != nil {
		t.Fatal(err)
	}
	leaf := rootOf(t, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = false, x509.KeyUsageDigitalSignature })
	body := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
	}
	doc := func(root *x509.Certificate) http.HandlerFunc { return body(string(document(t, 2, root))) }
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"not JSON":             {body("{junk"), "unable to parse JWKS"},
		"PEM":                  {body(string(certs.EncodeCerts(next))), "no SPIFFE bundle"},
		"nothing":              {body(""), "no SPIFFE bundle"},
		"no keys":              {body("{}"), "no authorities found"},
		"empty":                {body(`{"keys":[]}`), "holds no root"},
		"keys for tokens only": {body(`{"keys":[{"use":"other","kty":"oct","k":"AA"}]}`), ""},
		"an error":             {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }, "403"},
		"another place":        {http.RedirectHandler("https://127.0.0.1:1/", http.StatusFound).ServeHTTP, "not followed"},
		"too much":             {body("{" + strings.Repeat(" ", maxBundle)), "larger than"},
		"another trust domain": {doc(rootOf(t, func(c *x509.Certificate) { c.URIs = []*url.URL{uri} })), `of trust domain "c.example"`},
		"roots of another one": {doc(rootOf(t, func(c *x509.Certificate) { c.PermittedURIDomains = []string{"c.example"} })), "not for trust domain"},
		"expired":              {doc(rootOf(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })), "have expired"},
		"a leaf":               {body(strings.Replace(string(document(t, 2, root)), base64.StdEncoding.EncodeToString(root.Raw), base64.StdEncoding.EncodeToString(leaf.Raw), 1)), ""},
	} {
		e.say(tc.answer)
		_, good := f.ask(t.Context(), source, nil)
		st := f.Status()[0]
		if good || !strings.Contains(st.Problem, tc.want) || !strings.Contains(st.Problem, "counts, until") {
			t.Errorf("%s: %q, want %q", name, st.Problem, tc.want)
		}
		if len(st.Roots) != 1 || st.Roots[0].SHA256 != certs.Fingerprint(root) || st.Sequence != 1 || st.Since.IsZero() {
			t.Errorf("%s: %+v", name, st)
		}
		if roots := f.Domains()["b.example"]; len(roots) != 1 || !roots[0].Equal(root) {
			t.Errorf("%s: roots are %v", name, roots)
		}
		e.give(document(t, 1, root))
		if _, good := f.ask(t.Context(), source, nil); !good {
			t.Errorf("%s: no recovery: %s", name, f.Status()[0].Problem)
		}
	}
	if len(changes) != 0 {
		t.Errorf("%d changes, want none: the roots were always the same", len(changes))
	}
	e.give(document(t, 3, next))
	if f.ask(t.Context(), source, nil); len(changes) != 1 {
		t.Errorf("%d changes, want one", len(changes))
	}
	if st := f.Status()[0]; st.Sequence != 3 || st.Profile != "https_web" || st.RefreshHint != "1s" || st.Roots[0].SHA256 != certs.Fingerprint(next) {
		t.Errorf("%+v", st)
	}
	e.Close()
	f.ask(t.Context(), source, nil)
	if st := f.Status()[0]; !strings.Contains(st.Problem, "refused") || len(f.Domains()["b.example"]) != 1 {
		t.Errorf("without the endpoint: %+v", st)
	}
}

// TestEndpointIsNotProved: a bundle from an endpoint that does not prove its name is
// refused.
func TestEndpointIsNotProved(t *testing.T) {
	e := serveEndpoint(t, nil)
	e.give(document(t, 1, certstest.NewRoot(t).Cert))
	other := certs.EncodeCerts(certstest.NewRoot(t).Cert)
	for name, change := range map[string]func(*Config){
		"other web roots": func(c *Config) { c.WebRoots = other },
		"other name": func(c *Config) {
			c.WebRoots = e.webRoots()
			c.Sources[0].URL = strings.Replace(e.URL, "127.0.0.1", "localhost", 1)
			c.Guard.Lookup = func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			}
		},
		"metadata service": func(c *Config) {
			c.Sources[0].URL = "https://bundles.example/"
			c.Guard.Lookup = func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
			}
		},
	} {
		f, _ := run(t, func(c *Config) {
			c.Sources = []Source{{TrustDomain: "b.example", URL: e.URL}}
			change(c)
		})
		waitFor(t, name, func() bool { return f.Status()[0].Problem != "" })
		st := f.Status()[0]
		if !strings.Contains(st.Problem, "nobody of the trust domain is accepted") || len(f.Domains()["b.example"]) != 0 {
			t.Errorf("%s: %+v", name, st)
		}
		if name == "metadata service" && !strings.Contains(st.Problem, "link-local or a metadata service") {
			t.Errorf("%s: %s", name, st.Problem)
		}
	}
	if len(e.asked) != 0 {
		t.Errorf("the endpoint was asked %d times", len(e.asked))
	}
}

// shown returns the certificate of a workload.
func shown(t *testing.T, by *certs.Authority, id string) *tls.Certificate {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := mesh.ParseIdentity(id)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := by.SignLeaf(key.Public(), mesh.Caller{Identity: identity}, time.Hour, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
}

// TestSPIFFEProfile: an endpoint proves its SPIFFE id first by the bundle in the
// file, then by its last bundle, and by a new file after both have changed.
func TestSPIFFEProfile(t *testing.T) {
	const id = "spiffe://b.example/ns/istio-system/sa/istiod"
	root, next := certstest.NewRoot(t), certstest.NewRoot(t)
	file := filepath.Join(t.TempDir(), "bundle.json")
	put := func(data []byte) {
		if err := os.WriteFile(file+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	put(document(t, 1, root.Cert))
	for name, cert := range map[string]*tls.Certificate{
		"of another root":    shown(t, next, id),
		"of another account": shown(t, root, "spiffe://b.example/ns/istio-system/sa/other"),
	} {
		e := serveEndpoint(t, cert)
		e.give(document(t, 7, next.Cert))
		f, _ := run(t, func(c *Config) { c.Sources = []Source{{TrustDomain: "b.example", URL: e.URL, ID: id, File: file}} })
		waitFor(t, name, func() bool { return f.Status()[0].Problem != "" })
		if st := f.Status()[0]; len(st.Roots) != 1 || st.Roots[0].SHA256 != certs.Fingerprint(root.Cert) || len(e.asked) != 0 {
			t.Errorf("%s: %+v", name, st)
		}
	}
	e := serveEndpoint(t, shown(t, root, id))
	e.give(document(t, 2, root.Cert, next.Cert))
	f, _ := run(t, func(c *Config) { c.Sources = []Source{{TrustDomain: "b.example", URL: e.URL, ID: id, File: file}} })
	waitFor(t, "bundle", func() bool { return f.Status()[0].Sequence == 2 })
	put(document(t, 9, root.Cert)) // counts no longer
	e.give(document(t, 3, next.Cert))
	waitFor(t, "new bundle", func() bool { return f.Status()[0].Sequence == 3 })
	waitFor(t, "stranger", func() bool { return f.Status()[0].Problem != "" }) // the server kept its certificate
	if st := f.Status()[0]; st.Roots[0].SHA256 != certs.Fingerprint(next.Cert) || st.Profile != "https_spiffe" {
		t.Errorf("%+v", st)
	}
	put(document(t, 10, root.Cert))
	waitFor(t, "proof by the file", func() bool { return f.Status()[0].Problem == "" })
}

// TestSet: sources of MeshConfig count at once, and removed ones no longer.
func TestSet(t *testing.T) {
	a, b := certstest.NewRoot(t).Cert, certstest.NewRoot(t).Cert
	f, changes := run(t, func(*Config) {})
	sources := []Source{
		{TrustDomain: "b.example", PEM: string(certs.EncodeCerts(a))},
		{TrustDomain: "b.example", PEM: string(certs.EncodeCerts(b, a))},
		{PEM: string(certs.EncodeCerts(b))},
		{TrustDomain: "c.example", URL: "https://127.0.0.1:1/"},
	}
	f.Set(sources)
	got := f.Domains()
	if len(got["b.example"]) != 2 || len(got[""]) != 1 || len(got["c.example"]) != 0 || len(got) != 3 {
		t.Errorf("%v", got)
	}
	wait(t, changes, "change")
	f.Set(sources)
	if len(changes) != 0 {
		t.Error("the same sources are a change")
	}
	f.Set(nil)
	if got := f.Domains(); len(got) != 0 || len(f.Status()) != 0 {
		t.Errorf("%v", got)
	}
}

func TestSourcesAreChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		sources []Source
		want    string
	}{
		"plain HTTP":     {[]Source{{TrustDomain: "b", URL: "http://b/"}}, "want https"},
		"credentials":    {[]Source{{TrustDomain: "b", URL: "https://u:secret@b/"}}, "without user"},
		"no domain":      {[]Source{{TrustDomain: "B/x", URL: "https://b/"}}, "not a SPIFFE trust domain"},
		"no source":      {[]Source{{TrustDomain: "b"}}, "no bundle endpoint and no file"},
		"no bootstrap":   {[]Source{{TrustDomain: "b", URL: "https://b/", ID: "spiffe://b/ns/a/sa/b"}}, "no file"},
		"another domain": {[]Source{{TrustDomain: "b", URL: "https://b/", File: "f", ID: "spiffe://c/ns/a/sa/b"}}, "is not of trust domain b"},
		"same endpoint":  {[]Source{{TrustDomain: "b", URL: "https://b/"}, {TrustDomain: "c", URL: "https://b/"}}, "each has its own"},
	} {
		_, err := New(Config{Sources: tc.sources, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// TestHugeRoot: a root whose key makes each handshake slow is refused.
func TestHugeRoot(t *testing.T) {
	t.Parallel()
	signer, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	huge := &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), maxRSABits), E: 65537}
	der, err := x509.CreateCertificate(rand.Reader, template, template, huge, signer)
	if err != nil {
		t.Fatal(err)
	}
	_, err = judge("b.example", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), time.Now())
	if err == nil || !strings.Contains(err.Error(), "RSA key of 8193 bits: want at most 8192") {
		t.Errorf("error %v", err)
	}
}

// FuzzBundle: an accepted bundle has only CAs of the trust domain, and not all of them
// have expired.
func FuzzBundle(f *testing.F) {
	now := time.Now()
	root := certstest.NewRoot(f).Cert
	f.Add(document(f, 1, root))
	f.Add(certs.EncodeCerts(root))
	f.Add([]byte(`{"keys":[{"use":"x509-svid","kty":"EC","x5c":[]}]}`))
	f.Add([]byte(`{"keys":null,"spiffe_refresh_hint":-9223372036854775808}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := judge("b.example", bytes.Clone(data), now)
		if err != nil {
			return
		}
		if len(b.Roots) == 0 || len(b.Roots) > maxRoots || lastEnd(b.Roots).Before(now) {
			t.Fatalf("%d roots until %v", len(b.Roots), lastEnd(b.Roots))
		}
		_, hint := b.Published()
		if wait := refreshOf(hint); wait < minRefresh || wait > maxRefresh {
			t.Fatalf("hint %v makes %v", hint, wait)
		}
	})
}
