package facts

import (
	"cmp"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// MaxAliases is the number of ExternalName services that may stand for one service.
// Each adds names to the service's virtual hosts.
const MaxAliases = 100

// aliasTarget returns the host that an ExternalName service stands for, which may be the host of a
// service of the mesh. It returns "" for other services.
func aliasTarget(s *snapshot.Service) string { return strings.ToLower(s.ExternalName) }

// aliases returns the aliases of a service of a namespace and, recursively, of those aliases, sorted by
// namespace and name, at most maxAliases: those of its own namespace, then those of the others in turn.
func (t *Tables) aliases(r *derive.Reads, host, namespace string) []snapshot.Alias {
	var out []snapshot.Alias
	seen := map[string]struct{}{host: {}}
	for next := []string{host}; len(next) > 0; next = next[1:] {
		for _, s := range t.aliasesOf.Lookup(r, next[0]) {
			alias := mesh.ServiceHost(s.Name, s.Namespace, mesh.DefaultDomain)
			if _, known := seen[alias]; known || t.decisive(r, alias) != s {
				continue
			}
			seen[alias] = struct{}{}
			next = append(next, alias)
			out = append(out, snapshot.Alias{Host: alias, Name: s.Name, Namespace: s.Namespace, ExportTo: t.exportTo(r, s.Cluster, s.ExportTo)})
		}
	}
	slices.SortFunc(out, func(x, y snapshot.Alias) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	if len(out) > MaxAliases {
		t.Cfg.Log.Warn("too many ExternalName services stand for one service: the others are not used",
			"service", host, "number", len(out), "used", MaxAliases)
		used := aliasesInTurns(out, namespace)
		out = slices.DeleteFunc(out, func(a snapshot.Alias) bool { return !slices.Contains(used, a.Host) })
	}
	return out
}

// aliasesInTurns returns the hosts of the aliases that are used for a service of a namespace.
func aliasesInTurns(all []snapshot.Alias, namespace string) []string {
	hosts := make(map[string]Set[string])
	for _, a := range all {
		from := a.Namespace
		if from == namespace {
			from = ""
		}
		if hosts[from] == nil {
			hosts[from] = Set[string]{}
		}
		hosts[from].Add(a.Host)
	}
	return inTurns(hosts, MaxAliases, strings.Compare)
}

func equalAlias(x, y snapshot.Alias) bool {
	return x.Host == y.Host && slices.Equal(x.ExportTo, y.ExportTo)
}
