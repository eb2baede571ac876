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

// TestCertsPage runs the commands of docs/certs.md as they stand, one after
// the other in an empty directory, but for those that work on clusters. meshctl
// is this test binary; kubectl swallows what it is given.
func TestCertsPage(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	kubectl := "#!/bin/sh\nexec grep -c 'kind: Secret' >/dev/null\n"
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o700); err != nil {
		t.Fatal(err)
	}
	runCertsPage(t, func(block string) bool { return !strings.Contains(block, "--contexts") }, bin)
}

// TestCertsPageInClusters runs all of them, with kubectl and two clusters.
func TestCertsPageInClusters(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	t.Parallel()
	one, two := kube.Shared(t, "cluster1"), kube.Shared(t, "cluster2")
	for _, c := range []*kube.Cluster{one, two} {
		c.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}")
	}
	runCertsPage(t, func(string) bool { return true }, kube.Bin(t), "KUBECONFIG="+mergedKubeconfig(t, one, two))
}

// runCertsPage runs the wanted blocks of commands with the programs of a folder.
func runCertsPage(t *testing.T, wanted func(block string) bool, bin string, vars ...string) {
	t.Helper()
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
		if wanted(block[1]) {
			script.WriteString(block[1])
		}
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", "-euxo", "pipefail", "-c", script.String())
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+dir, "XDG_CONFIG_HOME=", "XDG_STATE_HOME=")
	cmd.Env = append(cmd.Env, vars...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
