package facts

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestHostIndex: the index of hosts finds what a search through them finds.
func TestHostIndex(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	host := func() string {
		out := []string{"", "*", "*.", "*-", "*b"}[random.IntN(5)]
		if out == "*" && random.IntN(2) == 0 {
			return out
		}
		for i := range 1 + random.IntN(3) {
			if i > 0 {
				out += "."
			}
			out += []string{"a", "b", "ab", "a-b", "ba"}[random.IntN(5)]
		}
		return out
	}
	for range 20_000 {
		v := &snapshot.VirtualService{}
		for range random.IntN(5) {
			v.Hosts = append(v.Hosts, host())
		}
		x, of := newHostIndex(v.Hosts), host()
		if got, want := x.overlaps(of), v.HostMatches(of); got != want {
			t.Fatalf("overlaps: hosts %q, host %q: got %t, want %t", v.Hosts, of, got, want)
		}
		longest := ""
		for _, own := range v.Hosts {
			if len(own) > len(longest) && snapshot.Covers(own, of) {
				longest = own
			}
		}
		if got := x.longestWildcard(of); len(got) != len(longest) || got != "" && !slices.Contains(v.Hosts, got) {
			t.Fatalf("longestWildcard: hosts %q, host %q: got %q, want %q", v.Hosts, of, got, longest)
		}
	}
}
