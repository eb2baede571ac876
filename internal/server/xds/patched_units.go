package xds

import (
	"fmt"
	"sync"

	"github.com/meshctl/meshctl/internal/server/xdsgen/patch"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// maxPatched bounds about how many bytes the EnvoyFilters of a namespace add to the resources of its
// proxies. A patch of all clusters in a large mesh becomes as many times its size, in the views of
// each proxy that has patches of its own. While resources change, the older ones count, too, up to
// twice the limit. The root namespace has no limit: its objects belong to the operator.
const maxPatched = 64 << 20

// patchedUnits holds what the patches of units cost, by the namespace of the EnvoyFilters.
type patchedUnits struct {
	mu    sync.Mutex
	costs map[*unit]patchedCost
	of    map[string]int
}

type patchedCost struct {
	namespace string
	bytes     int
}

// take adds the cost of a unit. It returns false, and adds nothing, if that exceeds the limit.
func (p *patchedUnits) take(u *unit, c patchedCost) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[c.namespace]+c.bytes > 2*maxPatched {
		return false
	}
	if p.costs == nil {
		p.costs, p.of = make(map[*unit]patchedCost), make(map[string]int)
	}
	p.costs[u] = c
	p.of[c.namespace] += c.bytes
	return true
}

// drop removes the cost of a unit that no view has.
func (p *patchedUnits) drop(u *unit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.costs[u]
	if !ok {
		return
	}
	delete(p.costs, u)
	if p.of[c.namespace] -= c.bytes; p.of[c.namespace] == 0 {
		delete(p.of, c.namespace)
	}
}

// generateKey generates the resources of a unit. Patches beyond the limit of their namespace have no
// effect.
func (h *Hub) generateKey(u *unit) ([]*xdswire.Resource, error) {
	root := ""
	if s := h.current.Load(); s != nil {
		root = s.Mesh.RootNamespace
	}
	namespace, each, less := patch.PatchedBy(u.key, root)
	if namespace == "" {
		return u.key.Generate(&h.encoder)
	}
	resources, err := less.Generate(&h.encoder)
	if err != nil || len(resources) == 0 {
		return resources, err
	}
	if h.patched.take(u, patchedCost{namespace, each * len(resources)}) {
		return u.key.Generate(&h.encoder)
	}
	reason := fmt.Sprintf("the EnvoyFilters of namespace %s would add more than %d MiB to the resources of its proxies", namespace, maxPatched>>20)
	return resources, patch.Unpatched(u.key, root, resources[0].Name, reason)
}
