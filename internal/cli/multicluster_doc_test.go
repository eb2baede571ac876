package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/kube"
)

// TestMulticlusterPage runs the commands of docs/multicluster.md as they stand,
// but for the ports, at two API servers.
func TestMulticlusterPage(t *testing.T) {
	if testing.Short() {
		t.Skip("needs two API servers")
	}
	t.Parallel()
	clusters := kube.StartAll(t, "cluster1", "cluster2") // the page wants their system namespaces
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "multicluster.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(blocks) < 8 {
		t.Fatalf("the page has %d blocks of commands", len(blocks))
	}
	var script strings.Builder
	for _, block := range blocks {
		script.WriteString(block[1])
	}
	text := script.String()
	for _, port := range []string{"18080", "28080", "15012", "25012"} {
		_, free, _ := strings.Cut(freeAddr(t), ":")
		text = strings.ReplaceAll(text, port, free)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", "-euxo", "pipefail", "-c", "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"+text)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+kube.Bin(t)+":"+os.Getenv("PATH"), "HOME="+dir, "XDG_CONFIG_HOME=", "XDG_STATE_HOME=",
		"KUBECONFIG="+clusters[0].KubeconfigFile(t)+":"+clusters[1].KubeconfigFile(t))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
