package installcmd

import (
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
)

// TestLookedAt: the line about no findings names the clusters of the mesh that were not read.
func TestLookedAt(t *testing.T) {
	t.Parallel()
	m, err := load.Read(t.Context(), load.Config{Clusters: []load.Cluster{{ID: "east"}}, Now: time.Now, Analysis: true})
	if err != nil {
		t.Fatal(err)
	}
	for want, unread := range map[string][]mesh.ClusterID{
		"and the Secrets that Gateways name": nil,
		"and the Secrets that Gateways name; not looked at: clusters north, west (--all-clusters)": {"north", "west"},
	} {
		got := lookedAt(nil, &configuration{mesh: m, checks: analyze.Options{Unread: unread}})
		if !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want the end %q", got, want)
		}
	}
}
