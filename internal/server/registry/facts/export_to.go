package facts

import (
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
)

// exportDefault returns defaultServiceExportTo of a cluster, or nil for all namespaces.
func (t *Tables) exportDefault(r *derive.Reads, id mesh.ClusterID) ([]string, bool) {
	to := meshConfig(t.settingsOf(r, id)).GetDefaultServiceExportTo()
	if slices.Contains(to, "*") {
		to = nil
	}
	return to, true
}

// exportTo returns the namespaces that see a service of a cluster, whose object has this
// exportTo; nil means all.
func (t *Tables) exportTo(r *derive.Reads, c mesh.ClusterID, own []string) []string {
	if own != nil {
		return own
	}
	to, _ := t.exportDefaults.Get(r, c)
	return to
}
