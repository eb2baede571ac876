package facts

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// hostIndex finds hosts of a VirtualService, which may be many.
type hostIndex struct {
	names Set[string]
	// partial holds the wildcards of parts of a label, such as *-a.x.
	partial []string
	// reversed holds the hosts without "*", letter by letter from their ends, sorted: hosts with the
	// same suffix are together.
	reversed []string
}

func newHostIndex(hosts []string) *hostIndex {
	x := &hostIndex{names: make(Set[string], len(hosts)), reversed: make([]string, len(hosts))}
	for i, host := range hosts {
		x.names.Add(host)
		if patternOf(host) != host {
			x.partial = append(x.partial, host)
		}
		x.reversed[i] = reversed(strings.TrimPrefix(host, "*"))
	}
	slices.Sort(x.reversed)
	return x
}

// reversed returns the bytes of a text from its end.
func reversed(text string) string {
	out := []byte(text)
	slices.Reverse(out)
	return string(out)
}

// overlaps reports whether the hosts have a name in common with a host, which may be a wildcard.
func (x *hostIndex) overlaps(host string) bool {
	if x.names.Has(host) || x.longestWildcard(host) != "" {
		return true
	}
	suffix, wild := strings.CutPrefix(host, "*")
	if !wild {
		return false
	}
	end := reversed(suffix) // is there a longer host that ends so?
	i, found := slices.BinarySearch(x.reversed, end)
	for found && i < len(x.reversed) && x.reversed[i] == end {
		i++
	}
	return i < len(x.reversed) && strings.HasPrefix(x.reversed[i], end)
}

// longestWildcard returns the longest of the wildcards that include all names of a host, which may be
// a wildcard, or "".
func (x *hostIndex) longestWildcard(host string) string {
	longest := ""
	consider := func(own string) bool {
		covers := snapshot.Covers(own, host)
		if covers && len(own) > len(longest) {
			longest = own
		}
		return covers
	}
	patterns(host, func(pattern string) bool { return !x.names.Has(pattern) || !consider(pattern) })
	for _, own := range x.partial {
		consider(own)
	}
	return longest
}
