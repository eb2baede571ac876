package rotate

import (
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/files"
)

func parse(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	c, err := parseOne(fileSystem{}, path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestNewIsLikeOld: the new CAs equal the old ones except for their keys.
func TestNewIsLikeOld(t *testing.T) {
	c := newClock()
	d := newDir(t, c)
	one := 1
	root, err := certs.NewRoot(certs.CASpec{
		Algorithm: certs.ECDSAP384, Organization: "Shop", CommonName: "Root", TTL: 5 * year, PathLen: &one,
		Like: model(t, pkix.Name{Country: []string{"CH"}, OrganizationalUnit: []string{"Mesh"}, Organization: []string{"x", "More"}}),
	}, c.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rootSet, err := store.RootFiles(root)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := root.NewIntermediate("cluster1", certs.CASpec{
		Algorithm: certs.ECDSAP256, Organization: "Shop", CommonName: "Signer", TTL: year, DNSNames: []string{"ca.svc"},
		Like: model(t, pkix.Name{Province: []string{"ZH"}, Locality: []string{"Here"}}),
	}, c.now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, err := store.Files(signer)
	if err := errors.Join(err, quickDisk{}.WriteDir(t.Context(), d.Path, rootSet), quickDisk{}.WriteDir(t.Context(), d.path("cluster1"), set)); err != nil {
		t.Fatal(err)
	}

	must(t, d, "start")
	type traits struct {
		Subject        string
		Algorithm      certs.Algorithm
		PathLen        int
		URIs, DNS, SAN []string
		Life           time.Duration
		Usage          x509.KeyUsage
		ExtUsage       []x509.ExtKeyUsage
		Constraints    [][]*net.IPNet
		Other          [][]string
	}
	of := func(x *x509.Certificate) traits {
		a, _ := certs.AlgorithmOf(x.PublicKey)
		return traits{
			x.Subject.String(), a, x.MaxPathLen,
			x.PermittedURIDomains, x.PermittedDNSDomains, x.DNSNames, lifeOf(x).Round(time.Hour),
			x.KeyUsage, x.ExtKeyUsage,
			[][]*net.IPNet{x.PermittedIPRanges, x.ExcludedIPRanges},
			[][]string{x.ExcludedDNSDomains, x.ExcludedURIDomains, x.PermittedEmailAddresses, x.ExcludedEmailAddresses},
		}
	}
	if got := root.Cert.Subject.String(); got != "CN=Root,OU=Mesh,O=Shop,C=CH" {
		t.Fatalf("the old root is %s", got)
	}
	if want := x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDecipherOnly; root.Cert.KeyUsage != want {
		t.Fatalf("the usage of the old root is %b", root.Cert.KeyUsage)
	}
	fresh := parse(t, d.path(keepDir, "root-cert.pem"))
	if diff := cmp.Diff(of(root.Cert), of(fresh)); diff != "" || fresh.Equal(root.Cert) {
		t.Errorf("the new root (-old +new):\n%s", diff)
	}
	freshSigner := parse(t, d.path(keepDir, "cluster1.new.ca-cert.pem"))
	if diff := cmp.Diff(of(signer.Cert), of(freshSigner)); diff != "" {
		t.Errorf("the new signer (-old +new):\n%s", diff)
	}
	info, err := os.Stat(d.path(keepDir, "root-key.pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key of the new root: %v, %v", info, err)
	}
}

// model returns a certificate with every property that a new one copies.
func model(t *testing.T, subject pkix.Name) *x509.Certificate {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	_, v4, _ := net.ParseCIDR("192.0.2.0/24")
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: subject, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDecipherOnly,
		ExtKeyUsage:         []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		PermittedURIDomains: []string{"shop.example"}, PermittedDNSDomains: []string{"svc", "shop.example"},
		ExcludedIPRanges: []*net.IPNet{v4}, ExcludedEmailAddresses: []string{"shop.example"},
		ExcludedDNSDomains: []string{"not.svc"}, ExcludedURIDomains: []string{"not.shop.example"},
	}, &x509.Certificate{}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// TestRevocationLists: before the signer changes, a cluster with revocation lists needs
// lists of the new CAs, too.
func TestRevocationLists(t *testing.T) {
	c := newClock()
	d := newDir(t, c, "cluster1")
	list := func(cert, key string) string {
		t.Helper()
		text, err := os.ReadFile(d.path(key))
		if err != nil {
			t.Fatal(err)
		}
		signer, err := certs.ParseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
			Number: big.NewInt(1), ThisUpdate: c.now, NextUpdate: c.now.Add(year),
		}, parse(t, d.path(cert)), signer)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
	}
	crl := "cluster1/ca-crl.pem"
	old := list("root-cert.pem", "root-key.pem") + list("cluster1/ca-cert.pem", "cluster1/ca-key.pem")
	appendTo(crl, old)(t, d, c)
	p, err := d.Plan(options())
	if err != nil || len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "ca-crl.pem has to hold lists of the new CAs") {
		t.Errorf("notes: %q, %v", p, err)
	}
	o := options()
	o.Root.CommonName = "Root CA 2"
	if _, err := d.Start(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	c.advance(wait)
	_, err = d.do(t.Context(), "next")
	wantRefusal(t, err, "crl-missing", time.Time{})
	fresh := list(keepDir+"/root-cert.pem", keepDir+"/root-key.pem") + list(keepDir+"/cluster1.new.ca-cert.pem", keepDir+"/cluster1.new.ca-key.pem")
	appendTo(crl, fresh)(t, d, c)
	must(t, d, "next")
	if s, err := d.Status(); err != nil || !s.Fine() {
		t.Errorf("status: %v, %v", s, err)
	}
	c.advance(wait)
	must(t, d, "finish")
}

// TestSpec checks the options of start.
func TestSpec(t *testing.T) {
	c := newClock()
	d := newDir(t, c, "cluster1")
	three := 3
	o := options()
	o.Root = certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "Root CA 2", TTL: year, PathLen: &three, PermittedURIDomains: []string{"td"}}
	if _, err := d.Start(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	root := parse(t, d.path(keepDir, "root-cert.pem"))
	if got := root.Subject.String(); got != "CN=Root CA 2,O=meshctl" {
		t.Errorf("subject is %s", got)
	}
	if root.MaxPathLen != 3 || !cmp.Equal(root.PermittedURIDomains, []string{"td"}) {
		t.Errorf("path length %d, constraints %v", root.MaxPathLen, root.PermittedURIDomains)
	}
	for _, name := range []string{"root-cert.pem", "cluster1.new.ca-cert.pem"} {
		x := parse(t, d.path(keepDir, name))
		if a, _ := certs.AlgorithmOf(x.PublicKey); a != certs.ECDSAP256 || x.NotAfter.After(c.now.Add(year)) {
			t.Errorf("%s has %s and ends at %s", name, a, x.NotAfter)
		}
	}
}

// TestOtherRootsStay: foreign roots stay in the bundles.
func TestOtherRootsStay(t *testing.T) {
	c := newClock()
	d := newDir(t, c, "cluster1")
	other := filepath.Join(t.TempDir(), "other")
	foreign := makeCAs(t, other, c.now)
	appendTo("cluster1/root-cert.pem", string(certs.EncodeCerts(foreign.Cert)))(t, d, c)
	must(t, d, "start")
	c.advance(wait)
	must(t, d, "next")
	c.advance(wait)
	must(t, d, "finish")
	a, err := store.Load(d.path("cluster1"), c.now)
	if err != nil || len(a.Roots) != 2 || !a.Roots[1].Equal(foreign.Cert) {
		t.Errorf("%v, %v", a, err)
	}
}

// TestSameNameWithoutKeyIDs: a new root with the name of an old root without key ids is
// refused.
func TestSameNameWithoutKeyIDs(t *testing.T) {
	c := newClock()
	d := newDir(t, c)
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	ca := func(name string, parent *x509.Certificate) *x509.Certificate {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
			NotBefore: c.now.Add(-time.Hour), NotAfter: c.now.Add(year), KeyUsage: x509.KeyUsageCertSign,
			SubjectKeyId: []byte{}, MaxPathLenZero: parent != nil,
		}
		if parent == nil {
			parent = template
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		x, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	root := ca("Root", nil)
	signer := ca("Signer", &x509.Certificate{Subject: root.Subject, RawSubject: root.RawSubject})
	if len(signer.AuthorityKeyId) > 0 {
		t.Fatal("the signer has the id of the root's key")
	}
	set, err := store.Files(&certs.Authority{Cert: signer, Key: key, Chain: []*x509.Certificate{signer}, Roots: []*x509.Certificate{root}})
	rootSet := []files.File{{Name: store.RootCertFile, Data: certs.EncodeCerts(root), Mode: files.Public}}
	if err := errors.Join(err, quickDisk{}.WriteDir(t.Context(), d.Path, rootSet), quickDisk{}.WriteDir(t.Context(), d.path("cluster1"), set)); err != nil {
		t.Fatal(err)
	}
	_, err = d.Start(t.Context(), options())
	wantRefusal(t, err, "no key ids to tell them apart by; give the new root another name with --cn", time.Time{})
	o := options()
	o.Root.CommonName = "Root 2"
	if _, err := d.Start(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// TestOtherLayout: a CA in LayoutTLS is rotated in that layout and gets no other files.
func TestOtherLayout(t *testing.T) {
	c := newClock()
	d := newDir(t, c, "cluster1", "cluster2")
	for from, to := range map[string]string{"ca-cert.pem": "tls.crt", "ca-key.pem": "tls.key", "root-cert.pem": "ca.crt"} {
		if err := os.Rename(d.path("cluster2", from), d.path("cluster2", to)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(d.path("cluster2", "cert-chain.pem")); err != nil {
		t.Fatal(err)
	}
	before, _ := d.read(t, "cluster2")
	for _, step := range []string{"start", "next", "finish"} {
		must(t, d, step)
		_, first := d.read(t, "cluster1")
		if _, second := d.read(t, "cluster2"); !slices.Equal(first, second) {
			t.Errorf("after %s the roots are %v and %v", step, first, second)
		}
		if step == "start" {
			list, err := d.Authorities()
			if err != nil || len(list) != 5 || len(list[3].Chain) != 1 || len(list[4].Chain) != 1 {
				t.Errorf("%d authorities, %v", len(list), err)
			}
		}
		c.advance(wait)
	}
	if after, roots := d.read(t, "cluster2"); after == before || len(roots) != 1 {
		t.Errorf("%s signs as before, or the roots are %v", after, roots)
	}
	entries, err := os.ReadDir(d.path("cluster2"))
	if err != nil || len(entries) != 3 {
		t.Errorf("the directory holds %v, %v", entries, err)
	}
	if _, err := store.Load(d.path("cluster2"), c.Now()); err != nil {
		t.Error(err)
	}
}

// TestRestore: Restore writes lost files, and the waiting time begins again.
func TestRestore(t *testing.T) {
	c := newClock()
	d := newDir(t, c, "cluster1", "cluster2")
	must(t, d, "start")
	c.advance(wait)
	must(t, d, "next")
	signer, _ := d.read(t, "cluster2")
	c.advance(wait)
	remove("cluster2")(t, d, c)
	must(t, d, "restore")
	if got, roots := d.read(t, "cluster2"); got != signer || len(roots) != 2 {
		t.Errorf("%s signs, roots %v", got, roots)
	}
	_, err := d.do(t.Context(), "finish")
	wantRefusal(t, err, "certificates of the root to be dropped", c.now.Add(wait))

	// A last step that was interrupted is taken back.
	c.advance(wait)
	f := &faulty{Storage: quickDisk{}, at: 3}
	d.Storage = f
	if _, err := d.do(t.Context(), "finish"); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	d.Storage = nil
	if _, roots := d.read(t, "cluster1"); len(roots) != 1 {
		t.Fatalf("the roots are %v", roots)
	}
	appendTo("cluster2/cert-chain.pem", "\n")(t, d, c)
	_, err = d.do(t.Context(), "finish")
	wantRefusal(t, err, "changed by hand", time.Time{})
	_, err = d.do(t.Context(), "abort")
	wantRefusal(t, err, "being dropped, which cannot be undone; complete it with finish", time.Time{})
	if s := must(t, d, "restore"); s.Phase != Sign {
		t.Errorf("the phase is %s", s.Phase)
	}
	if _, roots := d.read(t, "cluster1"); len(roots) != 2 {
		t.Errorf("the roots are %v", roots)
	}
	c.advance(wait)
	must(t, d, "finish")
}

// TestPlanTimes: the times of a plan equal the times of the state.
func TestPlanTimes(t *testing.T) {
	type times struct {
		Command          string
		Taken, NotBefore time.Duration // since the clock's start; 0 is never
	}
	const before = time.Hour
	for name, test := range map[string]struct {
		steps string
		want  []times
	}{
		"before":       {"", []times{{"start", 0, before}, {"next", 0, before + wait}, {"finish", 0, before + 2*wait}}},
		"trust":        {"start", []times{{"start", before, 0}, {"next", 0, before + wait}, {"finish", 0, before + 2*wait}}},
		"sign, late":   {"start + + next", []times{{"start", before, 0}, {"next", before + 2*wait, 0}, {"finish", 0, before + 3*wait}}},
		"back":         {"start + next abort", []times{{"start", before, 0}, {"next", before + wait, 0}, {"abort", before + wait, 0}, {"abort", 0, before + 2*wait}}},
		"restored way": {"start restore abort", []times{{"start", before, 0}, {"abort", before, 0}, {"abort", 0, before + wait}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			zero := c.now
			d := newDir(t, c, "cluster1")
			c.advance(before)
			for step := range strings.FieldsSeq(test.steps) {
				if step == "+" {
					c.advance(wait)
				} else {
					must(t, d, step)
				}
			}
			p, err := d.Plan(options())
			if err != nil {
				t.Fatal(err)
			}
			since := func(at time.Time) time.Duration {
				if at.IsZero() {
					return 0
				}
				return at.Sub(zero)
			}
			var got []times
			for _, s := range p.Steps {
				got = append(got, times{s.Command, since(s.Taken), since(s.NotBefore)})
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if len(p.Notes) > 0 {
				t.Errorf("notes: %q", p.Notes)
			}
		})
	}
}

// TestPlanNotes: a plan notes certificates that end too early.
func TestPlanNotes(t *testing.T) {
	c := newClock()
	d := newDir(t, c, "cluster1")
	c.advance(10*year - wait/2)
	p, err := d.Plan(options())
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Notes) != 2 || !strings.Contains(p.Notes[0], "the old root ends at") || !strings.Contains(p.Notes[1], "what signs for cluster1 ends at") {
		t.Errorf("notes: %q", p.Notes)
	}
}

// TestState: damaged state is an error that names the file.
func TestState(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"version":       {`"version": 1`, `"version": 2`, "this meshctl knows 1"},
		"phase":         {`"phase": "trust"`, `"phase": "x"`, "unknown phase"},
		"json":          {`{`, ``, "invalid character"},
		"settled end":   {`"phase": "trust"`, `"phase": "finished"`, "which has no state"},
		"cluster":       {`"cluster1"`, `"../x"`, `has "../x" as a cluster`},
		"negative time": {`"24h0m0s"`, `"-1s"`, "is negative"},
		"root":          {`"newRoot": "`, `"newRoot": "00`, "is not the root in"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			d := newDir(t, c, "cluster1")
			must(t, d, "start")
			path := d.path(keepDir, stateFile)
			data, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(data), test.from) {
				t.Fatalf("%v: no %s in\n%s", err, test.from, data)
			}
			if err := os.WriteFile(path, []byte(strings.Replace(string(data), test.from, test.to, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Status(); err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error is %v", err)
			}
		})
	}
}
