package ca

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/certs/verify"
)

// lists writes the revocation lists of CAs to dir.
func lists(t *testing.T, dir string, until time.Time, of ...*certs.Authority) {
	t.Helper()
	var all []byte
	for _, a := range of {
		all = append(all, crl(t, a, until)...)
	}
	write(t, filepath.Join(dir, "ca-crl.pem"), all)
}

// TestListsWhileARootRotates: lists of future, current and former CAs are accepted
// during a root rotation. A list of an unknown CA causes a warning.
func TestListsWhileARootRotates(t *testing.T) {
	oldRoot, newOne := certstest.NewRoot(t), certstest.NewRoot(t)
	oldSigner, newSigner := certstest.NewIntermediate(t, oldRoot), certstest.NewIntermediate(t, newOne)
	dir, later := newDir(t), time.Now().Add(time.Hour)
	save(t, dir, oldSigner)
	lists(t, dir, later, oldRoot, oldSigner, newOne, newSigner)
	cfg := config(t, dir)
	cfg.Alive = func(time.Time) []*certs.Authority { return []*certs.Authority{oldSigner} }
	c := follow(t, cfg)
	// The two new CAs follow, and their lists are valid.
	if p, w := c.Problems(), c.Warnings(); len(p) != 0 || len(w) != 0 {
		t.Fatalf("problems %q, warnings %q", p, w)
	}
	if got := c.Current().ForPeers.Count; got != 4 {
		t.Errorf("peers are given %d lists, want all: they know the others' CAs", got)
	}
	all := []*certs.Authority{oldRoot, oldSigner, newOne, newSigner}
	for _, step := range []struct {
		what string
		set  *certs.Authority
	}{
		{"both roots trusted", trusting(oldSigner, newOne)},
		{"the new signer signs", trusting(newSigner, oldRoot)},
	} {
		save(t, dir, step.set)
		lists(t, dir, later, all...)
		// The lists are written after the set. Between the two writes there are
		// lists of unknown CAs.
		waitFor(t, step.what, func() bool {
			return c.signs(step.set) && c.Current().ForPeers.Count == 4 && len(c.Problems()) == 0 && len(c.Warnings()) == 0
		})
	}
	// Certificates of the earlier signer are still valid.
	lists(t, dir, later, oldRoot, newOne, newSigner)
	waitFor(t, "an alarm", func() bool { return slices.Contains(c.Status().Codes, verify.CRLMissing) })
	if c.Current().ForPeers.Count != 4 {
		t.Error("proxies are given lists by which they refuse peers of the earlier signer")
	}
	// The old root may go only after its certificates have expired.
	lists(t, dir, later, newOne, newSigner)
	waitFor(t, "an alarm", func() bool { return slices.Contains(c.Status().Codes, DroppedLists) })
	if c.Current().ForPeers.Count != 4 {
		t.Error("the list of a root that is trusted was let go")
	}
}

// TestListsForPeers: proxies with any list need a current list of each CA, so they
// never get lists by which they would refuse every peer.
func TestListsForPeers(t *testing.T) {
	root := certstest.NewRoot(t)
	signer, dir, later := certstest.NewIntermediate(t, root), newDir(t), time.Now().Add(time.Hour)
	save(t, dir, signer)
	lists(t, dir, later, signer)
	c := run(t, dir)
	if got := c.Current(); !got.ForPeers.Withheld || got.ForPeers.PEM != "" || len(got.Revocations.Lists) != 1 {
		t.Fatalf("without a list of the root: %+v", got.ForPeers)
	}
	if s := c.Status(); !slices.Contains(s.Codes, verify.CRLMissing) || !strings.Contains(s.Alarm, "do not get them") {
		t.Errorf("alarm is %q", s.Alarm)
	}
	lists(t, dir, later, signer, root)
	waitFor(t, "lists for peers", func() bool { return c.Current().ForPeers.Count == 2 })
	good := c.Current().ForPeers
	if good.Withheld || !good.Until.Equal(later.Truncate(time.Second)) {
		t.Errorf("they are %+v", good)
	}
	lists(t, dir, time.Now().Add(-time.Second), signer, root)
	waitFor(t, "an alarm", func() bool { return slices.Contains(c.Status().Codes, verify.CRLStale) })
	if c.Current().ForPeers != good {
		t.Error("lists that are out of date are passed on")
	}
	lists(t, dir, later, signer, root)
	waitFor(t, "the end of the alarm", func() bool { return len(c.Problems()) == 0 })
}

// TestOpenDirectory: a directory that other users may write to causes a warning only.
func TestOpenDirectory(t *testing.T) {
	dir := newDir(t)
	save(t, dir, certstest.NewIntermediate(t, certstest.NewRoot(t)))
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	c := run(t, dir)
	if w := c.Warnings(); len(w) != 1 || !strings.Contains(w[0], string(verify.OpenDirectory)) || len(c.Problems()) != 0 {
		t.Errorf("warnings %q, problems %q", w, c.Problems())
	}
}
