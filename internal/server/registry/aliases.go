package registry

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// maxAliases is the number of ExternalName services that may stand for one service.
// Each adds names to the service's virtual hosts.
const maxAliases = 100

// aliases holds the ExternalName services that stand for services of the mesh.
type aliases struct {
	target map[name]name      // of each alias
	of     map[name]set[name] // the aliases of each target
}

func newAliases() aliases { return aliases{make(map[name]name), make(map[name]set[name])} }

// set sets or, if is is false, removes the target of an alias.
func (a aliases) set(alias, target name, is bool) {
	if was, had := a.target[alias]; had {
		delete(a.target, alias)
		if delete(a.of[was], alias); len(a.of[was]) == 0 {
			delete(a.of, was)
		}
	}
	if !is {
		return
	}
	a.target[alias] = target
	if a.of[target] == nil {
		a.of[target] = set[name]{}
	}
	a.of[target].add(alias)
}

// chain adds the target of a name, the target's target and so on.
func (a aliases) chain(from name, into set[name]) {
	seen := set[name]{}
	for at, is := a.target[from]; is; at, is = a.target[at] {
		if _, loop := seen[at]; loop {
			return
		}
		seen.add(at)
		into.add(at)
	}
}

// all returns the aliases of a service and, recursively, of those aliases, sorted.
func (a aliases) all(of name) []name {
	seen := set[name]{}
	for next := []name{of}; len(next) > 0; next = next[1:] {
		for alias := range a.of[next[0]] {
			if _, known := seen[alias]; !known && alias != of {
				seen.add(alias)
				next = append(next, alias)
			}
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(x, y name) int {
		return cmp.Or(cmp.Compare(x.namespace, y.namespace), cmp.Compare(x.name, y.name))
	})
}

// markAliased updates the targets of dirty services, and marks old and new targets: the
// names of aliases are part of the target's facts.
func (b *builder) markAliased() {
	more := set[name]{}
	for n := range b.dirty.services {
		b.aliases.chain(n, more)
		target, is := b.aliasTarget(n)
		b.aliases.set(n, target, is)
		b.aliases.chain(n, more)
	}
	maps.Copy(b.dirty.services, more)
}

// aliasTarget returns the service that an ExternalName service stands for, if its
// external name is the host of a service of the mesh.
func (b *builder) aliasTarget(n name) (name, bool) {
	svc := b.decisive(n)
	if svc == nil || svc.ExternalName == "" {
		return name{}, false
	}
	short, ok := strings.CutSuffix(strings.ToLower(svc.ExternalName), ".svc."+b.next.Mesh.Domain)
	service, namespace, two := strings.Cut(short, ".")
	if !ok || !two || strings.Contains(namespace, ".") {
		return name{}, false
	}
	return name{namespace: namespace, name: service}, true
}

// aliasesOf returns the aliases of a service, at most maxAliases.
func (b *builder) aliasesOf(n name) []snapshot.Alias {
	all := b.aliases.all(n)
	if len(all) > maxAliases {
		b.cfg.Log.Warn("too many ExternalName services stand for one service: the others are not used",
			"service", n.namespace+"/"+n.name, "number", len(all), "used", maxAliases)
		all = all[:maxAliases]
	}
	var out []snapshot.Alias
	for _, a := range all {
		if svc := b.decisive(a); svc != nil {
			out = append(out, snapshot.Alias{
				Host: mesh.ServiceHost(a.name, a.namespace, b.next.Mesh.Domain), Name: a.name, Namespace: a.namespace, ExportTo: svc.ExportTo,
			})
		}
	}
	return out
}

func equalAlias(x, y snapshot.Alias) bool {
	return x.Host == y.Host && slices.Equal(x.ExportTo, y.ExportTo)
}
