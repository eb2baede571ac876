package analyzecmd

import (
	"fmt"
	"strings"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/load"
)

// looked says what was read, for the line about no findings.
func looked(m *load.Mesh, clusters []load.Cluster) string {
	var names, paths []string
	for i := range clusters {
		c := &clusters[i]
		if c.Config != nil {
			names = append(names, string(c.ID))
		}
		paths = append(paths, c.Dirs...)
		for _, f := range c.Files {
			paths = append(paths, f.Name)
		}
	}
	place := strings.Join(paths, ", ")
	if len(names) > 0 {
		place = strings.TrimSuffix(cli.Named("cluster", names)+" with "+place, " with ")
	}
	objects, namespaces := m.Size()
	if objects == 0 {
		return "to look at: no object that a control plane reads is in " + place
	}
	return "in " + output.Plural(objects, "object") + " in " + output.Plural(namespaces, "namespace") + " of " + place
}

// hiddenFindings counts findings that flags hide.
type hiddenFindings struct{ elsewhere, ignored, below int }

// String returns the counts, empty if there are none.
func (h *hiddenFindings) String() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{h.elsewhere, "in other namespaces"}, {h.ignored, "suppressed"}, {h.below, "below --output-threshold"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "; not shown: " + strings.Join(parts, ", ")
}

// otherClusters names the clusters of the mesh that were not to be read.
func (o *analyzeOptions) otherClusters(unread []mesh.ClusterID) string {
	if o.contexts.All {
		return ""
	}
	return cli.NotLookedAt(unread)
}

// secretsRead says which Secrets of APIs were read.
func (o *analyzeOptions) secretsRead(clusters []load.Cluster) string {
	switch {
	case clusters[0].Config == nil:
		return ""
	case len(o.secretNamespaces) == 0:
		return ", and the Secrets that Gateways name"
	}
	return ", and the Secrets of " + strings.ReplaceAll(strings.Join(o.secretNamespaces, ", "), "*", "all namespaces")
}

// count returns the numbers of errors, warnings and remarks.
func count(reports []analyze.Report) string {
	n := map[codes.Level]int{}
	for i := range reports {
		n[reports[i].Level]++
	}
	return strings.Join([]string{
		output.Plural(n[codes.Error], "error"), output.Plural(n[codes.Warning], "warning"), output.Plural(n[codes.Info], "remark"),
	}, ", ")
}
