package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/dial"
)

// started returns Bundles that do not run, with the kept bundles only.
func started(t *testing.T, change func(*Config)) *Bundles {
	t.Helper()
	cfg := Config{Guard: dial.Guard{Loopback: true}, Now: time.Now, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	change(&cfg)
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestKeptOverARestart: after a restart without the endpoint, its last bundle counts, with
// its age, until the endpoint gives another.
func TestKeptOverARestart(t *testing.T) {
	root, next := certstest.NewRoot(t).Cert, certstest.NewRoot(t).Cert
	e := serveEndpoint(t, nil)
	e.give(document(t, 1, root))
	now := time.Now().Add(-time.Minute)
	dir := filepath.Join(t.TempDir(), "state", "bundles")
	source := Source{TrustDomain: "b.example", URL: e.URL, Via: "--federate"}
	config := func(c *Config) {
		c.Sources, c.WebRoots, c.Dir, c.Now = []Source{source}, e.webRoots(), dir, func() time.Time { return now }
	}
	first := started(t, config)
	if _, good := first.ask(t.Context(), source, nil); !good || first.Status()[0].Restored {
		t.Fatalf("%+v", first.Status())
	}
	for path, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, first.keptPath(source): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	checked := now
	now = now.Add(time.Minute)
	e.say(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "away", http.StatusServiceUnavailable) })
	second := started(t, config)
	for _, when := range []string{"at the start", "after the endpoint did not answer"} {
		st := second.Status()[0]
		if roots := second.Domains()["b.example"]; len(roots) != 1 || !roots[0].Equal(root) {
			t.Fatalf("%s: roots are %v", when, roots)
		}
		if !st.Restored || !st.CheckedAt.Equal(checked) || st.AgeSeconds != 60 || st.Sequence != 1 {
			t.Errorf("%s: %+v", when, st)
		}
		second.ask(t.Context(), source, nil)
	}
	if st := second.Status()[0]; !strings.Contains(st.Problem, "503") || !strings.Contains(st.Problem, "counts, until") {
		t.Errorf("problem %q", st.Problem)
	}
	e.give(document(t, 2, next))
	second.ask(t.Context(), source, nil)
	if st := second.Status()[0]; st.Restored || st.Problem != "" || st.Roots[0].SHA256 != certs.Fingerprint(next) {
		t.Errorf("%+v", st)
	}
	if st := started(t, config).Status()[0]; st.Sequence != 2 {
		t.Errorf("the third start has %+v", st)
	}
}

// TestKeptIsWrittenRarely: an unchanged bundle is written rarely.
func TestKeptIsWrittenRarely(t *testing.T) {
	e := serveEndpoint(t, nil)
	e.give(document(t, 1, certstest.NewRoot(t).Cert))
	now := time.Now()
	source := Source{TrustDomain: "b.example", URL: e.URL}
	f := started(t, func(c *Config) {
		c.Sources, c.WebRoots, c.Dir, c.Now = []Source{source}, e.webRoots(), t.TempDir(), func() time.Time { return now }
	})
	age := func() time.Duration {
		if _, good := f.ask(t.Context(), source, nil); !good {
			t.Fatalf("%+v", f.Status())
		}
		k, err := f.kept(source)
		if err != nil {
			t.Fatal(err)
		}
		return now.Sub(k.CheckedAt)
	}
	for _, want := range []time.Duration{0, time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 0, time.Minute} {
		if got := age(); got != want {
			t.Errorf("the kept bundle is %v old, want %v", got, want)
		}
		now = now.Add(time.Minute)
	}
}

// TestKeptIsJudged: kept bundles that must not count are refused at the start.
func TestKeptIsJudged(t *testing.T) {
	source := Source{TrustDomain: "b.example", URL: "https://127.0.0.1:1/bundle"}
	good := func(change func(*keptBundle)) []byte {
		k := keptBundle{TrustDomain: source.TrustDomain, URL: source.URL, LoadedAt: time.Now(), CheckedAt: time.Now(), Bundle: document(t, 1, certstest.NewRoot(t).Cert)}
		change(&k)
		data, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	same := func(*keptBundle) {}
	old := rootOf(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	for name, tc := range map[string]struct {
		data []byte
		mode os.FileMode
		want string
	}{
		"good":                  {good(same), 0o600, ""},
		"a clock put back":      {good(func(k *keptBundle) { k.CheckedAt = k.CheckedAt.Add(time.Hour) }), 0o600, ""},
		"others may write":      {good(same), 0o666, "refuse"},
		"damaged":               {good(same)[:200], 0o600, "damaged"},
		"no bundle":             {good(func(k *keptBundle) { k.Bundle = []byte("{}") }), 0o600, "no authorities"},
		"expired":               {good(func(k *keptBundle) { k.Bundle = document(t, 1, old) }), 0o600, "have expired"},
		"of long ago":           {good(func(k *keptBundle) { k.CheckedAt = k.CheckedAt.Add(-31 * 24 * time.Hour) }), 0o600, "more than 30 days ago"},
		"another trust domain":  {good(func(k *keptBundle) { k.TrustDomain = "c.example" }), 0o600, "of trust domain"},
		"from somewhere else":   {good(func(k *keptBundle) { k.URL = "https://127.0.0.1:2/" }), 0o600, "127.0.0.1:2"},
		"for another SPIFFE id": {good(func(k *keptBundle) { k.ID = "spiffe://b.example/ns/a/sa/b" }), 0o600, "of trust domain"},
		"too large":             {append(good(same), bytes.Repeat([]byte(" "), 2*maxBundle)...), 0o600, "more than the 2097152 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			dir := t.TempDir()
			path := (&Bundles{cfg: Config{Dir: dir}}).keptPath(source)
			if err := os.WriteFile(path, tc.data, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tc.mode); err != nil {
				t.Fatal(err)
			}
			f := started(t, func(c *Config) {
				c.Sources, c.Dir, c.Log = []Source{source}, dir, slog.New(slog.NewTextHandler(&log, nil))
			})
			roots, known := f.Domains()["b.example"]
			if st := f.Status()[0]; !known || (len(roots) == 1) != (tc.want == "") || st.Restored != (tc.want == "") || st.AgeSeconds < 0 {
				t.Errorf("%d roots, %+v\n%s", len(roots), st, log.String())
			}
			if !strings.Contains(log.String(), tc.want) {
				t.Errorf("log %s, want %q", log.String(), tc.want)
			}
		})
	}
}

// TestKeptProvesTheEndpoint: after a restart the kept bundle proves the endpoint, even if
// the file with the first bundle no longer does, unless the file has changed since.
func TestKeptProvesTheEndpoint(t *testing.T) {
	const id = "spiffe://b.example/ns/istio-system/sa/istiod"
	root, next := certstest.NewRoot(t), certstest.NewRoot(t)
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "bundle.json")
	put := func(doc []byte, changed time.Time) {
		if err := errors.Join(os.WriteFile(file, doc, 0o600), os.Chtimes(file, changed, changed)); err != nil {
			t.Fatal(err)
		}
	}
	put(document(t, 1, root.Cert, next.Cert), time.Now())
	e := serveEndpoint(t, shown(t, next, id))
	e.give(document(t, 2, next.Cert))
	source := Source{TrustDomain: "b.example", URL: e.URL, ID: id, File: file}
	config := func(c *Config) { c.Sources, c.Dir = []Source{source}, dir }
	f, _ := run(t, config)
	waitFor(t, "bundle", func() bool { return f.Status()[0].Sequence == 2 })
	waitFor(t, "what is kept", func() bool { _, err := f.kept(source); return err == nil })
	put(document(t, 1, root.Cert), time.Now().Add(-time.Hour))
	second, _ := run(t, config)
	if st := second.Status()[0]; st.Sequence != 2 {
		t.Errorf("after the restart: %+v", st)
	}
	waitFor(t, "answer", func() bool { return !second.Status()[0].Restored })

	put(document(t, 1, root.Cert), time.Now().Add(time.Hour))
	if st := started(t, config).Status()[0]; st.Restored || len(st.Roots) != 0 {
		t.Errorf("with a newer file: %+v", st)
	}
}

// TestKeptIsForgotten: the kept bundle of a removed source is deleted.
func TestKeptIsForgotten(t *testing.T) {
	e := serveEndpoint(t, nil)
	e.give(document(t, 1, certstest.NewRoot(t).Cert))
	source := Source{TrustDomain: "b.example", URL: e.URL}
	f := started(t, func(c *Config) { c.WebRoots, c.Dir = e.webRoots(), t.TempDir() })
	f.Set([]Source{source})
	f.ask(t.Context(), source, nil)
	if _, err := f.kept(source); err != nil {
		t.Fatal(err)
	}
	f.Set(nil)
	if _, err := os.Stat(f.keptPath(source)); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}
