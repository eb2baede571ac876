package envoy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const bootstrap = `
node: {id: test, cluster: test}
static_resources:
  clusters:
  - name: nowhere
    type: STATIC
    load_assignment: {cluster_name: nowhere}
`

func TestStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bootstrap.yaml")
	if err := os.WriteFile(path, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy := Start(t, path)

	if dump := string(proxy.ConfigDump()); !strings.Contains(dump, `"nowhere"`) {
		t.Errorf("the dump has no cluster nowhere:\n%s", dump)
	}
	if stats := proxy.Stats(`^server\.live$`); len(stats) != 1 || stats["server.live"] != 1 {
		t.Errorf("stats are %v, want server.live: 1 alone", stats)
	}
}
