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

// TestByHand runs the commands of docs/by-hand.md as they stand, but for the
// directory and the application's port.
func TestByHand(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "by-hand.md"))
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)```\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		script.WriteString(block[1])
	}
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
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -e\n"+strings.NewReplacer("/tmp/by-hand", dir, "8000", port).Replace(script.String()))
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+root)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	for _, want := range []string{"\n200\n", "127.0.0.1:" + port + "     HEALTHY", "ROOTCA", `"connection": "client.sample-1"`} {
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
