package commands

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/bundle"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/server/trust"
	"github.com/meshctl/meshctl/test/clitest"
)

// program runs meshctl in its own process with its own home.
type program struct {
	t         *testing.T
	bin, home string
}

func newProgram(t *testing.T) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, bin: filepath.Join(t.TempDir(), "meshctl"), home: t.TempDir()}
	if err := os.Symlink(self, p.bin); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *program) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(p.t.Context(), p.bin, args...)
	cmd.Env = []string{"HOME=" + p.home}
	return cmd
}

// start starts meshctl. The returned function kills it.
func (p *program) start(args ...string) (kill func()) {
	p.t.Helper()
	cmd := p.command(args...)
	cmd.Stderr = p.t.Output()
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// TestBundlesOutliveAKill: a control plane that was killed still trusts another mesh after
// its restart, while the bundle endpoint of that mesh is down.
func TestBundlesOutliveAKill(t *testing.T) {
	t.Parallel()
	root := certstest.NewRoot(t).Cert
	roots, err := bundle.Parse(certs.EncodeCerts(root))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := roots.SPIFFE(7, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(doc) }))
	defer endpoint.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, certs.EncodeCerts(endpoint.Certificate()), 0o600); err != nil {
		t.Fatal(err)
	}
	p, addr, dir := newProgram(t), clitest.FreeAddr(t), t.TempDir()
	serve := []string{
		"serve", "--config-dir", dir, "--http-addr", addr, "--grpc-addr", "", "--secure-grpc-addr", "127.0.0.1:0", "--monitoring-addr", "",
		"--federate", "b.example=" + endpoint.URL, "--federate-ca-file", ca,
	}
	until := func(what string, is func(trust.Status) bool) (st trust.Status) {
		t.Helper()
		var out []byte
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			var list []trust.Status
			out, _ = p.command("x", "internal-debug", "bundles", "--server", addr).Output()
			if json.Unmarshal(bytes.TrimSpace(out), &list) == nil && len(list) == 1 && is(list[0]) {
				return list[0]
			}
		}
		t.Fatalf("not within a minute: %s: %s", what, out)
		return st
	}
	kill := p.start(serve...)
	before := until("a bundle", func(st trust.Status) bool { return len(st.Roots) == 1 && !st.Restored })
	kept := func() []string {
		found, _ := filepath.Glob(filepath.Join(p.home, ".local", "state", "meshctl", "Kubernetes", "bundles", "*.json"))
		return found
	}
	for end := time.Now().Add(time.Minute); len(kept()) != 1 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	kill()
	endpoint.Close()

	kill = p.start(serve...)
	defer kill()
	after := until("the refused connection", func(st trust.Status) bool { return st.Problem != "" })
	if !after.Restored || len(after.Roots) != 1 || after.Roots[0] != before.Roots[0] || after.Sequence != 7 || after.AgeSeconds <= 0 {
		t.Errorf("after the restart: %+v, before: %+v", after, before)
	}
}
