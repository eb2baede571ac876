package commands

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/test/clitest"
	"github.com/meshctl/meshctl/test/kube"
)

// TestServeCAInSecrets: a control plane on a Kubernetes API signs with the CA of the Secret
// and follows the rotation of its root.
func TestServeCAInSecrets(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	t.Parallel()
	c := kube.Shared(t, "cluster1")
	ns, address, dir := c.Namespace(t, "serve"), clitest.FreeAddr(t), t.TempDir()
	env := map[string]string{"KUBECONFIG": c.KubeconfigFile(t), "XDG_RUNTIME_DIR": dir}
	lookup := func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}
	run := func(ctx context.Context, args ...string) (int, string) {
		var out, talk strings.Builder
		code := Run(ctx, &cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk, LookupEnv: lookup, Now: time.Now}, args)
		return code, out.String() + talk.String()
	}
	must := func(args ...string) {
		t.Helper()
		if code, text := run(t.Context(), args...); code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, text)
		}
	}
	certs := filepath.Join(dir, "certs")
	must("certs", "root-ca", "--out", certs)
	must("certs", "intermediate-ca", "--root", certs, "--out", certs, "cluster1")
	must("certs", "cacerts", certs, "--apply", "--context", "cluster1", "-n", ns)

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan string, 1)
	go func() {
		_, text := run(ctx, "serve", "--context", "cluster1", "--system-namespace", ns, "--cluster-id", "cluster1",
			"--http-addr", address, "--secure-grpc-addr", "127.0.0.1:0", "--grpc-addr", "", "--monitoring-addr", "")
		done <- text
	}()
	defer func() {
		stop()
		if text := <-done; t.Failed() {
			t.Log(text)
		}
	}()
	// wait waits for a status page.
	wait := func(what string, is func(p ca.Page) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			_, text := run(t.Context(), "certs", "status", "--server", address, "-o", "json")
			var pages []ca.Page
			text = text[:strings.LastIndex(text, "]")+1]
			if json.Unmarshal([]byte(text), &pages) == nil && len(pages) == 1 && is(pages[0]) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("no %s: %s", what, text)
			}
		}
	}
	wait("CA of the Secret", func(p ca.Page) bool {
		return p.Source == "Secret "+ns+"/cacerts" && p.Error == "" && p.Loaded != nil && len(p.Loaded.Roots) == 1 &&
			strings.Contains(p.Loaded.Signer.Subject, "L=cluster1")
	})
	must("certs", "rotate-root", "start", "--context", "cluster1", "-n", ns)
	wait("second root", func(p ca.Page) bool { return p.Error == "" && p.Loaded != nil && len(p.Loaded.Roots) == 2 })
	must("certs", "rotate-root", "abort", "--context", "cluster1", "-n", ns)
	wait("return to the first root", func(p ca.Page) bool { return p.Error == "" && p.Loaded != nil && len(p.Loaded.Roots) == 1 })
}
