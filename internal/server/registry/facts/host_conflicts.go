package facts

import (
	"cmp"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// HostConflict is a host that several objects define. A Service also defines its short names with the
// namespace.
type HostConflict struct {
	Host string `json:"host"`
	// First is the object that proxies use, unless their own namespace has another one or
	// First is not exported to them.
	First string `json:"first"`
	// Others are the other objects, in the order of precedence.
	Others []string `json:"others"`

	Losers []snapshot.Key `json:"-"` // the keys of Others
}

func (c HostConflict) String() string {
	return "host " + c.Host + ": several objects define it, proxies use " + c.First + " before " + strings.Join(c.Others, ", ")
}

// Equal reports whether two conflicts are the same.
func (c HostConflict) Equal(other HostConflict) bool {
	return c.Host == other.Host && c.First == other.First && slices.Equal(c.Others, other.Others)
}

// Text returns the problem of one of the losers.
func (c HostConflict) Text(loser int) string {
	used := c.First
	if strings.HasPrefix(used, "ServiceEntry ") {
		own := func(name string) bool {
			return strings.HasPrefix(name, "ServiceEntry "+c.Losers[loser].Namespace+"/")
		}
		before := append([]string{c.First}, c.Others[:loser]...)
		i := slices.IndexFunc(before, own)
		if i < 0 {
			return "defines the host " + c.Host + ", but only proxies of its namespace use it: others use " + c.First + " first"
		}
		used = before[i]
	}
	return "defines the host " + c.Host + ", but proxies use " + used + " first"
}

// maxRivals is the number of other objects that a HostConflict names.
const maxRivals = 8

// hostConflict returns the conflict of a host, if there is one.
func (t *Tables) hostConflict(r *derive.Reads, host string) (HostConflict, bool) {
	if strings.Contains(host, "/") {
		return HostConflict{}, false
	}
	entries := values(t.entriesOf.Lookup(r, host))
	slices.SortFunc(entries, compareAge)
	var names []string
	var keys []snapshot.Key
	s := cmp.Or(t.decisive(r, host), t.decisive(r, mesh.FullHost(host)))
	if _, service, isBelow := strings.Cut(host, "."); isBelow && s == nil {
		if s = t.headlessService(r, service); s != nil {
			entries = slices.DeleteFunc(entries, func(e *snapshot.ServiceEntry) bool { return e.Namespace == s.Namespace })
		}
	}
	if s != nil {
		names, keys = append(names, "Service "+s.Namespace+"/"+s.Name), append(keys, s.Key())
	}
	var merged []definition
	for _, e := range entries {
		if i := slices.IndexFunc(merged, func(d definition) bool { return d.entry.Namespace == e.Namespace }); i < 0 {
			merged = append(merged, entryDefinition(e, nil))
		} else if merged[i].merge(e) {
			continue // its ports apply
		}
		if len(names) > maxRivals {
			break
		}
		names, keys = append(names, "ServiceEntry "+e.Namespace+"/"+e.Name), append(keys, e.Key())
	}
	if len(names) < 2 {
		return HostConflict{}, false
	}
	return HostConflict{host, names[0], names[1:], keys[1:]}, true
}
