package rotate

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// clock is a time that tests set.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

const year = 365 * 24 * time.Hour

// makeCAs makes a root and the CAs of clusters in a directory.
func makeCAs(t testing.TB, dir string, now time.Time, clusters ...mesh.ClusterID) *certs.Authority {
	t.Helper()
	root, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, Organization: "meshctl", CommonName: "Root CA", TTL: 10 * year}, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	write := func(dir string, set []files.File, err error) {
		t.Helper()
		if err := errors.Join(err, quickDisk{}.WriteDir(t.Context(), dir, set)); err != nil {
			t.Fatal(err)
		}
	}
	set, err := store.RootFiles(root)
	write(dir, set, err)
	for _, c := range clusters {
		a, err := root.NewIntermediate(c, certs.CASpec{Algorithm: certs.ECDSAP256, Organization: "meshctl", CommonName: "Intermediate CA", TTL: 10 * year}, now, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		set, err := store.Files(a)
		write(filepath.Join(dir, string(c)), set, err)
	}
	return root
}

const (
	leafTTL     = 24 * time.Hour
	propagation = 10 * time.Minute
	wait        = leafTTL + propagation
)

func options() StartOptions { return StartOptions{LeafTTL: leafTTL, Propagation: propagation} }

func newDir(t testing.TB, c *clock, clusters ...mesh.ClusterID) *Dir {
	t.Helper()
	path := filepath.Join(t.TempDir(), "certs")
	makeCAs(t, path, c.now, clusters...)
	return &Dir{Path: path, Now: c.Now, Rand: rand.Reader, Gates: []Gate{Waited(c.Now)}}
}

// do takes a step: start, next, abort, finish or restore.
func (d *Dir) do(ctx context.Context, what string) (*State, error) {
	switch what {
	case "start":
		return d.Start(ctx, options())
	case "restore":
		return d.Restore(ctx)
	default:
		return d.Take(ctx, Action(what))
	}
}

func must(t testing.TB, d *Dir, what string) *State {
	t.Helper()
	s, err := d.do(t.Context(), what)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return s
}

func (d *Dir) read(t testing.TB, cluster string) (signer string, roots []string) {
	t.Helper()
	set, err := readSet(fileSystem{}, d.path(cluster), "")
	if err != nil {
		t.Fatal(err)
	}
	return facts(set)
}

// TestFromOldToNew checks the directories after each step of a complete rotation, and
// the archive.
func TestFromOldToNew(t *testing.T) {
	c := newClock()
	d := newDir(t, c, "cluster1", "cluster2")
	oldSigner, oldRoots := d.read(t, "cluster1")
	before, err := readSet(fileSystem{}, d.path("cluster2"), "")
	if err != nil {
		t.Fatal(err)
	}

	must(t, d, "start")
	signer, roots := d.read(t, "cluster1")
	if signer != oldSigner || len(roots) != 2 || roots[0] != oldRoots[0] {
		t.Errorf("after start %s signs and the roots are %v", signer, roots)
	}
	newRoot := roots[1]

	c.advance(wait)
	must(t, d, "next")
	signer, roots = d.read(t, "cluster1")
	if signer == oldSigner || !cmp.Equal(roots, []string{oldRoots[0], newRoot}) {
		t.Errorf("after next %s signs and the roots are %v", signer, roots)
	}

	c.advance(wait)
	state := must(t, d, "finish")
	for _, name := range []string{"cluster1", "cluster2"} {
		if _, roots := d.read(t, name); !cmp.Equal(roots, []string{newRoot}) {
			t.Errorf("after finish the roots of %s are %v", name, roots)
		}
		if _, err := store.Load(d.path(name), c.now); err != nil {
			t.Error(err)
		}
	}
	root, err := store.LoadRoot(d.Path, c.now)
	if err != nil {
		t.Fatal(err)
	}
	if got := certs.Fingerprint(root.Cert); got != state.NewRoot {
		t.Errorf("the root is %s, want %s", got, state.NewRoot)
	}
	if s, err := d.Status(); s != nil || err != nil {
		t.Errorf("a rotation is under way: %v, %v", s, err)
	}
	for _, name := range []string{"old-root-cert.pem", "old-root-key.pem", "cluster2.old.ca-key.pem"} {
		if _, err := os.Stat(filepath.Join(d.Archive(state), name)); err != nil {
			t.Error(err)
		}
	}
	want := []Event{{Trust, c.now.Add(-2 * wait)}, {Sign, c.now.Add(-wait)}, {Finished, c.now}}
	if diff := cmp.Diff(want, state.History); diff != "" {
		t.Error(diff)
	}

	// The next rotation begins where this one ended, and goes back whole.
	before2, err := readSet(fileSystem{}, d.path("cluster2"), "")
	if err != nil || equalSets(before, before2) {
		t.Fatalf("the directory is as it was: %v", err)
	}
	must(t, d, "start")
	must(t, d, "abort")
	after, err := readSet(fileSystem{}, d.path("cluster2"), "")
	if err != nil || !equalSets(after, before2) {
		t.Errorf("after abort the directory is another: %v", err)
	}
}

// wantRefusal checks a Refusal and that nothing was written.
func wantRefusal(t *testing.T, err error, reason string, until time.Time) {
	t.Helper()
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok || !strings.Contains(err.Error(), reason) {
		t.Fatalf("error is %v, want a refusal with %q", err, reason)
	}
	if !refusal.Until.Equal(until) {
		t.Errorf("it is safe from %v, want %v", refusal.Until, until)
	}
}

func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Type()&os.ModeSymlink != 0 {
			return err
		}
		data, err := os.ReadFile(path)
		out[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestRefusals: each case has the steps before ("+" waits), a change of the directory,
// the refused step, and the reason.
func TestRefusals(t *testing.T) {
	extra := func(t *testing.T, d *Dir, c *clock) {
		other := filepath.Join(t.TempDir(), "other")
		makeCAs(t, other, c.now, "cluster3")
		if err := os.Rename(filepath.Join(other, "cluster3"), d.path("cluster3")); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		steps  string
		spoil  func(t *testing.T, d *Dir, c *clock)
		refuse string
		reason string
		waits  bool
	}{
		"next too early":                {"start", nil, "next", "without the new root", true},
		"finish too early":              {"start + next", nil, "finish", "certificates of the root to be dropped", true},
		"second abort too early":        {"start + next abort", nil, "abort", "certificates of the root to be dropped", true},
		"next on the way back, early":   {"start + next + abort", nil, "next", "certificates of the root to be dropped", true},
		"finish before next":            {"start +", nil, "finish", "the new root does not sign yet", false},
		"next after sign":               {"start + next +", nil, "next", "the only step left drops the old root", false},
		"finish on the way back":        {"start + next abort +", nil, "finish", "being aborted", false},
		"start twice":                   {"start", nil, "start", "under way", false},
		"start in the middle":           {"start + next", nil, "start", "under way", false},
		"next of nothing":               {"", nil, "next", "no rotation is under way", false},
		"finish of nothing":             {"", nil, "finish", "no rotation is under way", false},
		"abort of nothing":              {"", nil, "abort", "no rotation is under way", false},
		"restore of nothing":            {"", nil, "restore", "no rotation is under way", false},
		"abort after finish":            {"start + next + finish", nil, "abort", "no rotation is under way", false},
		"a cluster is new, at next":     {"start +", extra, "next", "cluster3 is not part of the rotation", false},
		"a cluster is new, at finish":   {"start + next +", extra, "finish", "cluster3 is not part of the rotation", false},
		"a cluster is missing":          {"start +", remove("cluster2"), "next", "cluster2: it is missing", false},
		"a cluster is missing at abort": {"start +", remove("cluster2"), "abort", "cluster2: it is missing", false},
		"a file is missing":             {"start +", remove("cluster2/ca-key.pem"), "next", "ca-key.pem: no such file", false},
		"changed roots":                 {"start +", copyFile("root-cert.pem", "cluster1/root-cert.pem"), "next", "cluster1: it was changed by hand: its roots are", false},
		"changed signer":                {"start + next +", copyFile(".rotation/cluster1.old.ca-cert.pem", "cluster1/ca-cert.pem"), "finish", "signs, not", false},
		"changed bytes":                 {"start +", appendTo("cluster1/cert-chain.pem", "\n"), "next", "the files have other bytes", false},
		"changed at abort":              {"start + next", appendTo("cluster1/cert-chain.pem", "\n"), "abort", "changed by hand", false},
		"key open to others":            {"start +", chmod("cluster1/ca-key.pem", 0o644), "next", "chmod 600", false},
		"damaged revocation lists":      {"start +", appendTo("cluster1/ca-crl.pem", "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"), "next", "cluster1: it does not verify", false},
		"old signer expired at abort":   {"start + next", later(11 * year), "abort", "what would be written for cluster1 cannot be used", false},
		"root of another at start":      {"", otherRoot, "start", "does not trust the root", false},
		"no clusters":                   {"", func(t *testing.T, d *Dir, c *clock) { remove("cluster1")(t, d, c); remove("cluster2")(t, d, c) }, "start", "no directory of a cluster", false},
		"open key at start":             {"", chmod("cluster2/ca-key.pem", 0o644), "start", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClock()
			d := newDir(t, c, "cluster1", "cluster2")
			for step := range strings.FieldsSeq(test.steps) {
				if step == "+" {
					c.advance(wait)
				} else {
					must(t, d, step)
				}
			}
			if test.waits {
				c.advance(wait - time.Nanosecond)
			}
			if test.spoil != nil {
				test.spoil(t, d, c)
			}
			before := snapshot(t, d.Path)
			_, err := d.do(t.Context(), test.refuse)
			if test.reason == "" {
				if err == nil {
					t.Fatal("it was done")
				}
			} else {
				until := time.Time{}
				if test.waits {
					until = c.now.Add(time.Nanosecond)
				}
				wantRefusal(t, err, test.reason, until)
			}
			if diff := cmp.Diff(before, snapshot(t, d.Path)); diff != "" {
				t.Errorf("something was written: %s", diff)
			}
			if test.waits {
				c.advance(time.Nanosecond)
				must(t, d, test.refuse)
			}
		})
	}
}

func remove(name string) func(*testing.T, *Dir, *clock) {
	return func(t *testing.T, d *Dir, _ *clock) {
		if err := os.RemoveAll(d.path(name)); err != nil {
			t.Fatal(err)
		}
	}
}

func chmod(name string, mode os.FileMode) func(*testing.T, *Dir, *clock) {
	return func(t *testing.T, d *Dir, _ *clock) {
		if err := os.Chmod(d.path(name), mode); err != nil {
			t.Fatal(err)
		}
	}
}

func copyFile(from, to string) func(*testing.T, *Dir, *clock) {
	return func(t *testing.T, d *Dir, _ *clock) {
		data, err := os.ReadFile(d.path(from))
		if err == nil {
			err = files.Write(d.path(to), data, files.Public)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func appendTo(name, text string) func(*testing.T, *Dir, *clock) {
	return func(t *testing.T, d *Dir, _ *clock) {
		f, err := os.OpenFile(d.path(name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func later(by time.Duration) func(*testing.T, *Dir, *clock) {
	return func(_ *testing.T, _ *Dir, c *clock) { c.advance(by) }
}

func otherRoot(t *testing.T, d *Dir, c *clock) {
	other := filepath.Join(t.TempDir(), "other")
	makeCAs(t, other, c.now, "x")
	for _, name := range []string{"root-cert.pem", "root-key.pem"} {
		data, err := os.ReadFile(filepath.Join(other, name))
		if err == nil {
			err = os.WriteFile(d.path(name), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
