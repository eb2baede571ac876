package xds

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestNextState: Each state of a random history equals one made from
// nothing: content, version, and the differences from all earlier states.
func TestNextState(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var e xdswire.Encoder
	var s *viewState
	var history []*viewState
	now := make(map[string]*xdswire.Resource)
	for id := uint64(1); id < 200; id++ {
		changes := make(map[string]*xdswire.Resource)
		for range rng.IntN(5) {
			name := fmt.Sprintf("r%d", rng.IntN(20))
			changes[name] = nil
			delete(now, name)
			if rng.IntN(3) > 0 {
				r, err := e.Resource(xdswire.ClusterType, name, wrapperspb.Int64(rng.Int64N(3)))
				if err != nil {
					t.Fatal(err)
				}
				changes[name], now[name] = r, r
			}
		}
		next := s.next(id, changes)
		fresh := (*viewState)(nil).next(1_000_000+id, now)
		if got, want := versions(next.resources), versions(fresh.resources); !slices.Equal(got, want) {
			t.Fatalf("state %d holds %v, want %v", id, got, want)
		}
		if next.resources.Sum() != fresh.resources.Sum() {
			t.Fatalf("state %d has version %x, made from nothing %x", id, next.resources.Sum(), fresh.resources.Sum())
		}
		for _, old := range append(history, nil) {
			got, want := next.since(old), compare(old, next)
			if d := cmp.Diff(versions(want.changed), versions(got.changed)); d != "" {
				t.Fatalf("changed (-want +got):\n%s", d)
			}
			if d := cmp.Diff(want.removed, got.removed); d != "" {
				t.Fatalf("removed (-want +got):\n%s", d)
			}
			if next.since(old) != got {
				t.Fatal("the difference is not shared")
			}
		}
		if next == s {
			continue
		}
		history = append(history, next)
		s = next
	}
}

func versions(resources *xdswire.List) (out []string) {
	for r := range resources.All {
		out = append(out, r.Name+"="+r.Version)
	}
	return out
}
