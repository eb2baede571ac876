package ca

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the wait for an expected event.
const patience = 2 * time.Minute

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v", what, patience)
		}
	}
}

// trusting returns a with more roots in its bundle.
func trusting(a *certs.Authority, others ...*certs.Authority) *certs.Authority {
	b := *a
	b.Roots = append([]*x509.Certificate{}, a.Roots...)
	for _, o := range others {
		b.Roots = append(b.Roots, o.Cert)
	}
	return &b
}

// save replaces dir by a directory with the files of a.
func save(t *testing.T, dir string, a *certs.Authority) {
	t.Helper()
	if _, err := store.SaveIntermediates(filepath.Dir(dir), []store.Intermediate{{Cluster: "cluster1", Authority: a}}, true); err != nil {
		t.Fatal(err)
	}
}

func newDir(t *testing.T) string { return filepath.Join(t.TempDir(), "cluster1") }

// write replaces a file in one step, so that no reader sees a part.
func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := files.Write(path, data, files.Secret); err != nil {
		t.Fatal(err)
	}
}

// run opens dir and follows it until the test ends.
func run(t *testing.T, dir string) *CA {
	t.Helper()
	return follow(t, config(t, dir))
}

func follow(t *testing.T, cfg Config) *CA {
	t.Helper()
	c, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

func config(t *testing.T, dir string) Config {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	return Config{
		Source: &Dir{dir}, Use: func(*Set) {}, Reloaded: func(bool) {}, Now: time.Now, Log: log,
		TrustDomain: func() (string, []string) { return "", nil }, ServerNames: []string{"istiod.istio-system.svc"},
		Alive: func(time.Time) []*certs.Authority { return nil },
	}
}

func (c *CA) signs(a *certs.Authority) bool {
	set := c.Current()
	return set != nil && set.Cert.Equal(a.Cert) && len(set.Roots) == len(a.Roots)
}

// mount writes a as the kubelet mounts a Secret.
func mount(t *testing.T, dir, version string, a *certs.Authority) {
	t.Helper()
	from := newDir(t)
	save(t, from, a)
	target := filepath.Join(dir, "..v"+version)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(from, target); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..v"+version, filepath.Join(dir, "..data_tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(target)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if err := os.Symlink("..data/"+n.Name(), filepath.Join(dir, n.Name())); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
}

// TestReload: a new set comes into use, however its files change.
func TestReload(t *testing.T) {
	root := certstest.NewRoot(t)
	first, second := certstest.NewIntermediate(t, root), certstest.NewIntermediate(t, root)
	for name, way := range map[string]struct {
		first  func(t *testing.T, dir string)
		second func(t *testing.T, dir string)
	}{
		"directory swapped": {
			func(t *testing.T, dir string) { save(t, dir, first) },
			func(t *testing.T, dir string) { save(t, dir, second) },
		},
		"..data swapped": {
			func(t *testing.T, dir string) { mount(t, dir, "1", first) },
			func(t *testing.T, dir string) { mount(t, dir, "2", second) },
		},
		"written over, one file after the other": {
			func(t *testing.T, dir string) { save(t, dir, first) },
			func(t *testing.T, dir string) { copyFiles(t, dir, second) },
		},
		"files come late": {
			func(t *testing.T, dir string) {
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, dir string) { copyFiles(t, dir, second) },
		},
		"directory taken away and made anew": {
			func(t *testing.T, dir string) { save(t, dir, first) },
			func(t *testing.T, dir string) {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				copyFiles(t, dir, second)
			},
		},
		"behind a link that changes": {
			func(t *testing.T, dir string) {
				save(t, filepath.Join(dir+"-1", "cluster1"), first)
				relink(t, filepath.Join(dir+"-1", "cluster1"), dir)
			},
			func(t *testing.T, dir string) {
				save(t, filepath.Join(dir+"-2", "cluster1"), second)
				relink(t, filepath.Join(dir+"-2", "cluster1"), dir)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			way.first(t, dir)
			c := run(t, dir)
			way.second(t, dir)
			waitFor(t, "reload", func() bool { return c.signs(second) })
			select {
			case <-c.Ready():
			default:
				t.Error("it is not ready")
			}
			waitFor(t, "end of problems", func() bool { return len(c.Problems()) == 0 })
		})
	}
}

func copyFiles(t *testing.T, dir string, a *certs.Authority) {
	t.Helper()
	from := newDir(t)
	save(t, from, a)
	for _, name := range []string{"ca-key.pem", "ca-cert.pem", "root-cert.pem", "cert-chain.pem"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), data)
	}
}

func relink(t *testing.T, to, link string) {
	t.Helper()
	if err := os.Symlink(to, link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
}

// TestBadSetsAreRefused: an invalid set is refused with a code, and the last good one
// stays.
func TestBadSetsAreRefused(t *testing.T) {
	t.Parallel()
	root, other := certstest.NewRoot(t), certstest.NewRoot(t)
	good := certstest.NewIntermediate(t, root)
	old := certstest.NewIntermediate(t, root)
	expired, err := root.NewIntermediate("cluster1", certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "x", TTL: 30 * time.Second}, time.Now().Add(-time.Minute), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(t *testing.T, dir string)
		want   verify.Code
	}{
		"key of another": {func(t *testing.T, dir string) { write(t, dir+"/ca-key.pem", keyOf(t, old)) }, verify.KeyMismatch},
		"root of another": {func(t *testing.T, dir string) {
			write(t, dir+"/root-cert.pem", certs.EncodeCerts(other.Cert))
		}, verify.RootNotInBundle},
		"expired intermediate": {func(t *testing.T, dir string) { save(t, dir, expired) }, verify.Expired},
		"wrong order": {func(t *testing.T, dir string) {
			write(t, dir+"/cert-chain.pem", certs.EncodeCerts(root.Cert, good.Cert))
		}, verify.WrongOrder},
		"extra certificate": {func(t *testing.T, dir string) {
			write(t, dir+"/ca-cert.pem", certs.EncodeCerts(good.Cert, root.Cert))
		}, verify.Misplaced},
		"TRUSTED CERTIFICATE": {func(t *testing.T, dir string) {
			write(t, dir+"/root-cert.pem", []byte(strings.ReplaceAll(string(certs.EncodeCerts(root.Cert)), "CERTIFICATE", "TRUSTED CERTIFICATE")))
		}, verify.TrustedBlock},
		"a file is missing": {func(t *testing.T, dir string) {
			if err := os.Remove(dir + "/root-cert.pem"); err != nil {
				t.Fatal(err)
			}
		}, verify.Incomplete},
		"all files are gone": {func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, verify.Incomplete},
		"half written": {func(t *testing.T, dir string) {
			write(t, dir+"/ca-cert.pem", certs.EncodeCerts(good.Cert)[:100])
		}, verify.DamagedPEM},
		"key open to others": {func(t *testing.T, dir string) {
			if err := os.Chmod(dir+"/ca-key.pem", 0o644); err != nil {
				t.Fatal(err)
			}
		}, verify.ExposedKey},
		// Valid sets that peers could not switch to.
		"another mesh":           {func(t *testing.T, dir string) { save(t, dir, certstest.NewIntermediate(t, other)) }, UntrustedSigner},
		"new root signs at once": {func(t *testing.T, dir string) { save(t, dir, trusting(certstest.NewIntermediate(t, other), root)) }, UntrustedSigner},
		"signer and roots at once": {func(t *testing.T, dir string) {
			save(t, dir, certstest.WithRoots(certstest.NewIntermediate(t, other), other))
		}, UntrustedSigner},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := newDir(t)
			save(t, dir, good)
			c := run(t, dir)
			tc.change(t, dir)
			waitFor(t, "refusal", func() bool { return len(c.Problems()) > 0 && c.Status().Error != "" })
			s := c.Status()
			if len(s.Codes) == 0 || s.Codes[0] != tc.want {
				t.Errorf("codes are %q, want %q first: %s", s.Codes, tc.want, s.Error)
			}
			if !c.signs(good) || s.Loaded.Signer.SHA256 != certs.Fingerprint(good.Cert) {
				t.Error("the good set is not in use any more")
			}
			if text := strings.Join(c.Problems(), "\n"); !strings.Contains(text, string(tc.want)) || !strings.Contains(text, "keeps signing") {
				t.Errorf("problems are %q", text)
			}
			save(t, dir, good) // as it was
			waitFor(t, "end of problems", func() bool { return len(c.Problems()) == 0 })
		})
	}
	t.Run("CRLF is no fault", func(t *testing.T) {
		dir := newDir(t)
		save(t, dir, old)
		c := run(t, dir)
		save(t, dir, good)
		for _, name := range []string{"ca-key.pem", "ca-cert.pem", "root-cert.pem", "cert-chain.pem"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, name), []byte(strings.ReplaceAll(string(data), "\n", "\r\n")))
		}
		waitFor(t, "reload", func() bool { return c.signs(good) && len(c.Problems()) == 0 })
	})
}

func keyOf(t *testing.T, a *certs.Authority) []byte {
	t.Helper()
	key, err := certs.EncodeKey(a.Key)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestRootRotation: each step of a root rotation is accepted, forward and back. A
// skipped step is refused.
func TestRootRotation(t *testing.T) {
	a, b := certstest.NewRoot(t), certstest.NewRoot(t)
	underA, underB := certstest.NewIntermediate(t, a), certstest.NewIntermediate(t, b)
	steps := []*certs.Authority{underA, trusting(underA, b), certstest.WithRoots(underB, a, b), underB}
	dir := newDir(t)
	save(t, dir, steps[0])
	c := run(t, dir)
	for _, i := range []int{1, 2, 1, 2, 3} {
		save(t, dir, steps[i])
		waitFor(t, fmt.Sprint("step ", i), func() bool { return c.signs(steps[i]) })
		for _, root := range steps[i].Roots {
			if _, err := root.Verify(x509.VerifyOptions{Roots: c.Current().Pool}); err != nil {
				t.Errorf("step %d: a root of the bundle is not accepted: %v", i, err)
			}
		}
	}
	save(t, dir, steps[1])
	waitFor(t, "refusal", func() bool { return c.Status().Error != "" })
	if s := c.Status(); s.Codes[0] != UntrustedSigner {
		t.Errorf("going back at once: %s", s.Error)
	}
	save(t, dir, steps[2])
	waitFor(t, "step back", func() bool { return c.signs(steps[2]) })
	save(t, dir, certstest.WithRoots(underA, a)) // drops the root of the signer in use
	waitFor(t, "refusal", func() bool { return c.Status().Error != "" })
	if s := c.Status(); s.Codes[0] != DroppedRoot {
		t.Errorf("dropping the root in use: %s", s.Error)
	}
}

// TestTrustDomain: a CA whose constraints exclude the trust domain or the names of the
// control plane is refused.
func TestTrustDomain(t *testing.T) {
	spec := func(uris, names []string) certs.CASpec {
		return certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "Root CA", TTL: 24 * time.Hour, PermittedURIDomains: uris, PermittedDNSDomains: names}
	}
	for name, tc := range map[string]struct {
		spec   certs.CASpec
		domain string
		want   verify.Code
	}{
		"permitted":                    {spec([]string{"cluster.local"}, []string{"svc"}), "cluster.local", ""},
		"another trust domain":         {spec([]string{"cluster.local"}, []string{"svc"}), "other.org", verify.NameConstraint},
		"trust domain not known":       {spec([]string{"cluster.local"}, []string{"svc"}), "", ""},
		"names of the own port":        {spec([]string{"cluster.local"}, []string{"example.org"}), "cluster.local", verify.Rejected},
		"names of the own port, early": {spec(nil, []string{"example.org"}), "", verify.Rejected},
	} {
		root, err := certs.NewRoot(tc.spec, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		cfg := config(t, newDir(t))
		save(t, cfg.Source.Place(), root)
		cfg.TrustDomain = func() (string, []string) { return tc.domain, nil }
		if _, err = Open(cfg); tc.want == "" && err != nil || tc.want != "" && !slices.Contains(findingCodes(err), tc.want) {
			t.Errorf("%s: error is %v, want %q", name, err, tc.want)
		}
	}
}

// TestTrustDomainLater: the trust domain may become known after the CA.
func TestTrustDomainLater(t *testing.T) {
	t.Parallel()
	root, err := certs.NewRoot(certs.CASpec{
		Algorithm: certs.ECDSAP256, CommonName: "Root CA", TTL: 24 * time.Hour,
		PermittedURIDomains: []string{"cluster.local"}, PermittedDNSDomains: []string{"svc"},
	}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(t, newDir(t))
	save(t, cfg.Source.Place(), root)
	var domain atomic.Value
	domain.Store("")
	cfg.TrustDomain = func() (string, []string) { return domain.Load().(string), nil }
	c := follow(t, cfg)
	for _, step := range []struct {
		domain string
		good   bool
	}{{"cluster.local", true}, {"other.org", false}, {"cluster.local", true}} {
		domain.Store(step.domain)
		waitFor(t, "judgement for "+step.domain, func() bool { return c.last.Load().domain == step.domain })
		if good := c.Status().Error == ""; good != step.good {
			t.Errorf("%s: error is %q", step.domain, c.Status().Error)
		}
		if fits := c.Fits(c.Current()) == nil; fits != step.good {
			t.Errorf("%s: it fits: %v", step.domain, fits)
		}
	}
	// No peers depend on a CA that never fitted, so any other may replace it.
	domain.Store("other.org")
	waitFor(t, "a problem", func() bool {
		return slices.ContainsFunc(c.Problems(), func(p string) bool { return strings.Contains(p, "nothing is signed") })
	})
	next := certstest.NewRoot(t)
	save(t, cfg.Source.Place(), next)
	waitFor(t, "another CA", func() bool { return c.signs(next) && len(c.Problems()) == 0 })
}

// TestEarlierSigner: the root of an earlier signer must stay while its certificates are
// valid.
func TestEarlierSigner(t *testing.T) {
	a, b := certstest.NewRoot(t), certstest.NewRoot(t)
	first, second := trusting(certstest.NewIntermediate(t, a), b), trusting(certstest.NewIntermediate(t, b), a)
	cfg := config(t, newDir(t))
	save(t, cfg.Source.Place(), first)
	var alive atomic.Pointer[[]*certs.Authority]
	alive.Store(&[]*certs.Authority{first, second})
	cfg.Alive = func(time.Time) []*certs.Authority { return *alive.Load() }
	c := follow(t, cfg)
	save(t, cfg.Source.Place(), second)
	waitFor(t, "second signer", func() bool { return c.Current().Cert.Equal(second.Cert) })
	save(t, cfg.Source.Place(), certstest.WithRoots(second, b))
	waitFor(t, "refusal", func() bool { return c.Status().Error != "" })
	if s := c.Status(); s.Codes[0] != DroppedRoot || !strings.Contains(s.Error, verify.Short(first.Cert)) {
		t.Errorf("dropping the root of certificates that are valid: %s", s.Error)
	}
	alive.Store(&[]*certs.Authority{second})
	save(t, cfg.Source.Place(), certstest.WithRoots(second, b))
	waitFor(t, "end of the first root", func() bool { return c.signs(certstest.WithRoots(second, b)) })
}

func TestOpenRefuses(t *testing.T) {
	dir := newDir(t)
	if _, err := NewDir(dir); err == nil {
		t.Error("a directory that is not there is opened")
	}
	save(t, dir, certstest.NewIntermediate(t, certstest.NewRoot(t)))
	write(t, dir+"/ca-cert.pem", []byte("junk"))
	if _, err := Open(config(t, dir)); err == nil || !strings.Contains(err.Error(), string(verify.NoPEM)) {
		t.Errorf("error is %v", err)
	}
}

// TestLayoutTLS: both of Istio's layouts are read.
func TestLayoutTLS(t *testing.T) {
	a, dir := certstest.NewIntermediate(t, certstest.NewRoot(t)), t.TempDir()
	write(t, dir+"/tls.crt", certs.EncodeCerts(a.Chain...))
	write(t, dir+"/tls.key", keyOf(t, a))
	write(t, dir+"/ca.crt", certs.EncodeCerts(a.Roots...))
	if c := run(t, dir); !c.signs(a) {
		t.Errorf("problems: %q", c.Problems())
	}
}

// revoking returns a root that may sign revocation lists and leaves.
func revoking(t *testing.T) *certs.Authority {
	t.Helper()
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
	return &certs.Authority{Cert: cert, Key: key, Roots: []*x509.Certificate{cert}}
}

// crl returns a revocation list of a.
func crl(t *testing.T, a *certs.Authority, until time.Time, serials ...int64) []byte {
	t.Helper()
	template := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: until}
	for _, s := range serials {
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: big.NewInt(s), RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, a.Cert, a.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

// forged returns the list with an invalid signature.
func forged(t *testing.T, list []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(list)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

// TestRevocationLists: revocation lists take effect at once. An invalid list is
// reported, and the last good one stays in force.
func TestRevocationLists(t *testing.T) {
	t.Parallel()
	root, dir := revoking(t), newDir(t)
	save(t, dir, root)
	c := run(t, dir)
	leaf := func(serial int64) *x509.Certificate {
		return &x509.Certificate{RawIssuer: root.Cert.RawSubject, SerialNumber: big.NewInt(serial)}
	}
	revoked := func(serial int64) func() bool {
		return func() bool { return c.Current().Revoked(leaf(serial), root.Cert) }
	}
	if revoked(100)() {
		t.Error("a certificate is revoked without a list")
	}
	path, later := dir+"/ca-crl.pem", time.Now().Add(time.Hour)
	write(t, path, crl(t, root, later, 100))
	waitFor(t, "revocation", revoked(100))
	if revoked(101)() || c.Current().Revoked(leaf(100), revoking(t).Cert) {
		t.Error("others are revoked, too")
	}
	for name, tc := range map[string]struct {
		data []byte
		want verify.Code
	}{
		"junk":              {[]byte("junk"), verify.NoPEM},
		"damaged":           {crl(t, root, later, 101)[:80], verify.DamagedPEM},
		"malformed":         {pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: []byte("junk")}), verify.CRLMalformed},
		"forged":            {forged(t, crl(t, root, later, 101)), verify.CRLWrongIssuer},
		"of another alone":  {crl(t, revoking(t), later, 101), DroppedLists},
		"certificate in it": {certs.EncodeCerts(root.Cert), verify.Misplaced},
		"empty":             {nil, verify.CRLMalformed},
		"blank":             {[]byte("\n \n"), verify.CRLMalformed},
	} {
		write(t, path, tc.data)
		waitFor(t, name+" told", func() bool { return slices.Contains(c.Status().Codes, tc.want) })
		if !revoked(100)() || revoked(101)() {
			t.Errorf("%s: the last good list is not in force", name)
		}
		if text := strings.Join(c.Problems(), "\n"); !strings.Contains(text, "are kept") {
			t.Errorf("%s: problems are %q", name, text)
		}
	}
	write(t, path, crl(t, root, time.Now().Add(-time.Second), 102))
	waitFor(t, "revocation by a list that is out of date", revoked(102))
	waitFor(t, "that told", func() bool { return slices.Contains(c.Status().Codes, verify.CRLStale) })
	write(t, path, crl(t, root, later, 7)) // the root itself
	waitFor(t, "refusal", func() bool { return c.Status().Error != "" })
	if s := c.Status(); s.Codes[0] != verify.Revoked || !revoked(102)() {
		t.Errorf("a CA that is revoked itself: %s", s.Error)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "alarm", func() bool { return slices.Contains(c.Status().Codes, DroppedLists) })
	if !revoked(102)() {
		t.Error("the end of the file is the end of the revocations")
	}
	write(t, path, crl(t, root, later))
	waitFor(t, "end of all", func() bool { return !revoked(102)() && len(c.Problems()) == 0 })
}
