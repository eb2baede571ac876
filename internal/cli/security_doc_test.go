package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityModelPage runs the commands of docs/security-model.md as they
// stand: two meshes that federate. meshctl is this test binary.
func TestSecurityModelPage(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("SKIPPED: curl is not installed, so the commands of docs/security-model.md are not run")
	}
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "security-model.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d blocks of commands", len(blocks))
	}
	var script strings.Builder
	for _, block := range blocks {
		script.WriteString(block[1])
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", "-euxo", "pipefail", "-c", "trap 'kill $(jobs -p)' ERR\n"+script.String())
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME=", "XDG_STATE_HOME=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
