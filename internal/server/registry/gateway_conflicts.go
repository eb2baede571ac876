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

// ServerConflicts describes the servers of Gateways that proxies do not open because of
// others, sorted.
func (r *Registry) ServerConflicts() []string { return r.report.Load().serverConflicts }

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

// describeServerConflicts describes the conflicts, and logs those that were not there before.
func (s *state) describeServerConflicts(before, now []serverConflict) []string {
	return describeNew(before, now, func(c serverConflict) {
		s.cfg.Log.Warn("a server of a Gateway is not opened", "gateway", c.gateway.String(), "at", c.at.String(), "server", c.index, "reason", c.reason)
	}, func(more int) {
		s.cfg.Log.Warn("more servers of Gateways are not opened: see /ready?verbose", "more", more)
	})
}
