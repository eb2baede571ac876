package analyze_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/load"
)

// TestForms: testdata/forms/findings.txt lists the findings in a mesh with further forms of
// faults than the examples have.
func TestForms(t *testing.T) {
	t.Parallel()
	var clusters []load.Cluster
	for _, id := range []mesh.ClusterID{"east", "west"} {
		text, err := os.ReadFile(filepath.Join("testdata", "forms", string(id)+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		clusters = append(clusters, load.Cluster{ID: id, Files: []load.File{{Name: string(id) + ".yaml", Text: text}}})
	}
	got := strings.TrimPrefix(texts(check(t, clusters)), "\n") + "\n"
	golden := filepath.Join("testdata", "forms", "findings.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", golden, diff)
	}
}
