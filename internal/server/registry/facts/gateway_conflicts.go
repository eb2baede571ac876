package facts

import (
	"fmt"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// ServerConflict is a server of a Gateway that proxies do not open because of another.
type ServerConflict struct {
	Gateway snapshot.Key
	At      snapshot.Place
	Index   int
	Reason  string
}

func (c ServerConflict) String() string {
	return fmt.Sprintf("%s: %s %s", c.Gateway, c.Field(), c.Text())
}

// Field returns the path of the server that is not opened.
func (c ServerConflict) Field() string { return fmt.Sprintf("spec.servers[%d]", c.Index) }

// Text describes the fault, without its object.
func (c ServerConflict) Text() string { return "is not opened: " + c.Reason }

// maxComparedServers bounds the servers that are compared for the selectors of one namespace.
const maxComparedServers = 200_000

// findServerConflicts finds the conflicts on workloads that have the labels of a Gateway's
// selector. It knows neither the other labels of the workloads nor the Services that give
// several ports one target port. With very many selectors of one namespace, it leaves out
// those of the youngest Gateways.
func (t *Tables) findServerConflicts(r *derive.Reads) []ServerConflict {
	all := t.Configs.Get(r)
	var out []ServerConflict
	found, done, compared := Set[ServerConflict]{}, Set[snapshot.LabelSelector]{}, map[string]int{}
	for _, gw := range all {
		selector := gw.Spec.GetSelector()
		key := snapshot.SelectorOf(selector)
		if done.Has(key) || compared[gw.Namespace] > maxComparedServers {
			continue
		}
		done.Add(key)
		var together []*snapshot.Gateway
		for _, other := range all {
			if snapshot.Selects(other.Spec.GetSelector(), selector) {
				together = append(together, other)
				compared[gw.Namespace] += len(other.Spec.GetServers())
			}
		}
		_, conflicts := snapshot.MergeGateways(together, func(port uint32) uint32 { return port })
		for _, c := range conflicts {
			conflict := ServerConflict{c.Gateway.Key(), c.Gateway.Place, c.Index, c.Reason}
			if !found.Has(conflict) {
				found.Add(conflict)
				out = append(out, conflict)
			}
		}
	}
	return out
}
