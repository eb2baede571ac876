package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCertsPage runs the commands of docs/certs.md as they stand, one after
// the other in an empty directory. meshctl is this test binary; kubectl
// swallows what it is given.
func TestCertsPage(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("SKIPPED: openssl is not installed, so the commands of docs/certs.md are not run")
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "certs.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(blocks) < 5 {
		t.Fatalf("the page has %d blocks of commands", len(blocks))
	}
	var script strings.Builder
	for _, block := range blocks {
		script.WriteString(block[1])
	}
	bin := t.TempDir()
	kubectl := "#!/bin/sh\nexec grep -c 'kind: Secret' >/dev/null\n"
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o700); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", "-euxo", "pipefail", "-c", script.String())
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+dir, "XDG_CONFIG_HOME=", "XDG_STATE_HOME=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
