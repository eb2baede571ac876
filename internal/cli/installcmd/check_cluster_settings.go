package installcmd

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/mesh"
)

// clusterSettings returns a remark for each cluster that control planes of the checked clusters drain or
// weigh, with the command that ends it.
func (o *checkOptions) clusterSettings(checked []*checkedCluster, states []clusterState) []apply.Finding {
	type setting struct {
		drain  bool
		weight uint32
	}
	readers := map[mesh.ClusterID]map[setting][]string{} // contexts of the control planes
	for i, c := range checked {
		for _, page := range states[i].planes.clusters {
			for j := range page.Value.Clusters {
				of := &page.Value.Clusters[j]
				s := setting{of.Setting.Drain, of.Setting.Weight}
				if s == (setting{}) {
					continue
				}
				if readers[of.Cluster] == nil {
					readers[of.Cluster] = map[setting][]string{}
				}
				if !slices.Contains(readers[of.Cluster][s], c.access.Context) {
					readers[of.Cluster][s] = append(readers[of.Cluster][s], c.access.Context)
				}
			}
		}
	}
	var out []apply.Finding
	for _, id := range slices.Sorted(maps.Keys(readers)) {
		for s, contexts := range readers[id] {
			flags := o.kube.CommandFlags(strings.Join(contexts, ","))
			if o.values.namespace != "" && o.values.namespace != mesh.DefaultSystemNamespace {
				flags += " -n " + o.values.namespace
			}
			f := apply.Finding{Level: apply.Info, Cluster: contexts[0], Object: "cluster " + string(id)}
			by := "by the control planes in " + strings.Join(contexts, ", ")
			if s.drain {
				f.Fault = "is drained " + by + ": their proxies call its endpoints only if no other cluster has healthy ones"
				f.Hint = withFlags("meshctl multicluster undrain "+string(id), flags)
			} else {
				f.Fault = fmt.Sprintf("is weighed %s: each of its endpoints gets %d%% of the load of another endpoint", by, s.weight)
				f.Hint = withFlags("meshctl multicluster weight "+string(id)+" 100", flags)
			}
			out = append(out, f)
		}
	}
	slices.SortStableFunc(out, func(a, b apply.Finding) int { return strings.Compare(a.Object+a.Fault, b.Object+b.Fault) })
	return out
}
