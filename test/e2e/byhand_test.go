package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/envoy"
)

// commands are what a page has for a shell.
func commands(t *testing.T, page string) (out []string) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(string(doc), -1) {
		if block[1] == "" {
			out = append(out, block[2])
		}
	}
	return out
}

// TestByHand runs the commands of docs/by-hand.md as they stand, but for the
// directory and the application's port, and before its end those of
// docs/agent.md for an application without Envoy, which prints its bootstrap.
func TestByHand(t *testing.T) {
	proxyless := commands(t, "agent.md")
	if len(proxyless) != 1 {
		t.Fatalf("docs/agent.md has %d blocks of commands, want 1", len(proxyless))
	}
	const application, end = " ./application\n", "kill $(jobs -p)"
	script := strings.Join(commands(t, "by-hand.md"), "")
	if !strings.Contains(proxyless[0], application) || !strings.Contains(script, end) {
		t.Fatalf("the pages have no%sor no %s", application, end)
	}
	script = strings.Replace(script, end, strings.Replace(proxyless[0], application, ` sh -c 'cat "$GRPC_XDS_BOOTSTRAP"'`+"\n", 1)+end, 1)
	dir := filepath.Join(shortDir(t), "h")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// The page starts in the repository after make build envoy.
	root := shortDir(t)
	for name, target := range map[string]string{"bin/meshctl": meshctl, ".cache/envoy/envoy": envoy.Path(t)} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -e; trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"+strings.NewReplacer("/tmp/by-hand", dir, "8000", port).Replace(script))
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+root)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	for _, want := range []string{"\n200\n", "127.0.0.1:" + port + "     HEALTHY", "ROOTCA", `"connection": "client.sample-1"`, `"server_uri": "unix://` + dir + `/run/client/XDS"`} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the commands do not print %q", want)
		}
	}
	if err != nil || t.Failed() {
		t.Fatalf("%v\n%s\n%s", err, stdout.String(), stderr.String())
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
}
