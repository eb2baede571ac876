package certscmd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/test/clitest"
)

// startCA runs a control plane with a CA directory and returns both.
func startCA(t *testing.T) (address, dir string) {
	t.Helper()
	root, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "Root CA", TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a, err := root.NewIntermediate("c1", certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "Intermediate CA", TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	if _, err := store.SaveIntermediates(parent, []store.Intermediate{{Cluster: "c1", Authority: a}}, false); err != nil {
		t.Fatal(err)
	}
	address, dir = clitest.FreeAddr(t), filepath.Join(parent, "c1")
	ready := make(chan struct{})
	s, err := server.New(server.Config{
		ClusterID: "c1", ConfigDir: t.TempDir(), CADir: dir, TokenAudiences: []string{"istio-ca"},
		SecureGRPCAddr: "127.0.0.1:0", HTTPAddr: address, OnReady: func() { close(ready) },
		TokenDirs: localtoken.Directories(clitest.HomeOnly(parent)),
		Log:       slog.New(slog.DiscardHandler), Now: time.Now, Rand: rand.Reader,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-ready
	return address, dir
}

func TestCertsStatus(t *testing.T) {
	address, dir := startCA(t)
	status := func(args ...string) (int, string) {
		var out, errs strings.Builder
		env := &cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, LookupEnv: clitest.HomeOnly(filepath.Dir(dir)), Now: time.Now}
		code := run(t.Context(), env, append([]string{"certs", "status", "--server", address}, args...))
		return code, out.String() + errs.String()
	}
	code, text := status()
	for _, want := range []string{"WHAT", "on disk", "loaded", "own port", "CN=Intermediate CA,L=c1", "nothing was signed since the start"} {
		if code != 0 || !strings.Contains(text, want) {
			t.Errorf("code %d, no %q in\n%s", code, want, text)
		}
	}
	page := func() ca.Page {
		_, text := status("-o", "json")
		if i := strings.LastIndex(text, "]"); i >= 0 {
			text = text[:i+1]
		}
		var pages []struct {
			Replica string
			ca.Page
		}
		if err := json.Unmarshal([]byte(text), &pages); err != nil || len(pages) != 1 || pages[0].Replica != address {
			t.Fatalf("%v\n%s", err, text)
		}
		return pages[0].Page
	}
	if p := page(); p.Disk == nil || p.Loaded == nil || p.Disk.Signer != p.Loaded.Signer || p.Source != dir || len(p.Loaded.Roots) != 1 || p.Error != "" {
		t.Errorf("page is %+v", p)
	}
	before := page()
	if err := os.WriteFile(filepath.Join(dir, "root-cert.pem"), []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(clitest.Patience); page().Error == ""; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the bad file is not told")
		}
	}
	p := page()
	if p.Disk == nil || p.Disk.Signer != before.Disk.Signer || len(p.Disk.Roots) != 0 || p.ServingSigner == nil || *p.ServingSigner != p.Loaded.Signer || p.Loaded.Signer != before.Loaded.Signer || !slices.Contains(p.Codes, "no-pem") || p.Since.IsZero() {
		t.Errorf("page is %+v", p)
	}
	code, text = status()
	for _, want := range []string{"on disk, refused     CN=Intermediate CA,L=c1", "on disk is not loaded, since", "no-pem", "is not in use"} {
		if code != 3 || !strings.Contains(text, want) {
			t.Errorf("code %d, no %q in\n%s", code, want, text)
		}
	}
	if code, text := status("--server", "x/y"); code != 2 {
		t.Errorf("a bad address ends with %d: %s", code, text)
	}
}
