package registry

import (
	"fmt"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// serverConflict is a server of a Gateway that proxies do not open because of another.
type serverConflict struct {
	gateway snapshot.Key
	at      snapshot.Place
	index   int
	reason  string
}

func (c serverConflict) String() string {
	return fmt.Sprintf("%s: %s %s", c.gateway, c.field(), c.text())
}

func (c serverConflict) field() string { return fmt.Sprintf("spec.servers[%d]", c.index) }

func (c serverConflict) text() string { return "is not opened: " + c.reason }

// maxComparedServers bounds the servers that are compared for the selectors of one namespace.
const maxComparedServers = 200_000

// findServerConflicts finds the conflicts on workloads that have the labels of a Gateway's
// selector. It knows neither the other labels of the workloads nor the Services that give
// several ports one target port. With very many selectors of one namespace, it leaves out
// those of the youngest Gateways.
func (t *tables) findServerConflicts(r *derive.Reads) []serverConflict {
	all := t.configs.Get(r)
	var out []serverConflict
	found, done, compared := set[serverConflict]{}, set[snapshot.LabelSelector]{}, map[string]int{}
	for _, gw := range all {
		selector := gw.Spec.GetSelector()
		key := snapshot.SelectorOf(selector)
		if done.has(key) || compared[gw.Namespace] > maxComparedServers {
			continue
		}
		done.add(key)
		var together []*snapshot.Gateway
		for _, other := range all {
			if snapshot.Selects(other.Spec.GetSelector(), selector) {
				together = append(together, other)
				compared[gw.Namespace] += len(other.Spec.GetServers())
			}
		}
		_, conflicts := snapshot.MergeGateways(together, func(port uint32) uint32 { return port })
		for _, c := range conflicts {
			conflict := serverConflict{c.Gateway.Key(), c.Gateway.Place, c.Index, c.Reason}
			if !found.has(conflict) {
				found.add(conflict)
				out = append(out, conflict)
			}
		}
	}
	return out
}
