package installcmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/clusters"
)

// TestDrainedClusterIsARemark: a drained or weighed cluster has a line with the command that ends it, and
// is no fault.
func TestDrainedClusterIsARemark(t *testing.T) {
	t.Parallel()
	var checked []*checkedCluster
	var states []clusterState
	for _, name := range []string{"east", "west"} {
		page := clusters.Page{Clusters: []clusters.PageCluster{
			{Status: clusters.Status{Cluster: "east"}},
			{Status: clusters.Status{Cluster: "west", Setting: mesh.ClusterSetting{Drain: true}}},
		}}
		if name == "west" {
			page.Clusters[0].Setting.Weight = 20
		}
		checked = append(checked, &checkedCluster{access: &kube.Access{Context: name}})
		states = append(states, clusterState{planes: controlPlanes{clusters: []cli.Answer[clusters.Page]{{Value: page}, {Value: page}}}})
	}
	o := &checkOptions{output: output.FormatTable, values: valueFlags{namespace: mesh.DefaultSystemNamespace}}
	found := o.clusterSettings(checked, states)
	var out, notes bytes.Buffer
	env := &cli.Env{Stdout: &out, Stderr: &notes}
	if err := o.report(env, "east, west", found, nil); err != nil {
		t.Errorf("remarks are faults: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[1], "Info ") ||
		!strings.HasSuffix(lines[1], " meshctl multicluster weight east 100 --context west") ||
		!strings.HasSuffix(lines[2], " meshctl multicluster undrain west --context east,west") || !strings.Contains(lines[2], "is drained") {
		t.Errorf("found\n%s", out.String())
	}
	if !strings.Contains(notes.String(), "no fault found, 2 remarks: looked at") {
		t.Errorf("notes %q", notes.String())
	}
	out.Reset()
	if err := o.report(env, "east, west", append(found, apply.Finding{Level: apply.Warning, Object: "a"}), nil); err == nil || !strings.Contains(err.Error(), "1 fault") {
		t.Errorf("a warning beside remarks is no fault: %v", err)
	}
	if !strings.Contains(strings.Split(out.String(), "\n")[1], "Warning") {
		t.Errorf("remarks come first:\n%s", out.String())
	}
}
