package xds

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/server/snapshot"
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
		if next.sum != fresh.sum {
			t.Fatalf("state %d has version %x, made from nothing %x", id, next.sum, fresh.sum)
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

func versions(resources []*xdswire.Resource) []string {
	out := make([]string, len(resources))
	for i, r := range resources {
		out[i] = r.Name + "=" + r.Version
	}
	return out
}

func TestMergeChanges(t *testing.T) {
	set := func(names ...string) map[string]struct{} {
		m := make(map[string]struct{})
		for _, n := range names {
			m[n] = struct{}{}
		}
		return m
	}
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	a := &snapshot.Changes{
		Services: set("a"), Endpoints: set("e"), Ports: map[uint32]struct{}{1: {}}, Everywhere: true, Since: late,
		Causes: []snapshot.Cause{{Key: snapshot.Key{Name: "one"}}}, Events: 1,
	}
	b := &snapshot.Changes{
		Services: set("b"), Pods: set("p"), Secrets: set("s"), Namespaces: set("n"), Ports: map[uint32]struct{}{2: {}}, Since: early,
		Causes: slices.Repeat([]snapshot.Cause{{Key: snapshot.Key{Name: "more"}}}, maxCauses), Events: 20,
	}
	want := &snapshot.Changes{
		Services: set("a", "b"), Endpoints: set("e"), Pods: set("p"), Secrets: set("s"), Namespaces: set("n"),
		Ports: map[uint32]struct{}{1: {}, 2: {}}, Everywhere: true, Since: early,
		Causes: append([]snapshot.Cause{{Key: snapshot.Key{Name: "one"}}}, slices.Repeat([]snapshot.Cause{{Key: snapshot.Key{Name: "more"}}}, maxCauses-1)...),
		Events: 21,
	}
	if d := cmp.Diff(want, mergeChanges(a, b)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if len(a.Services) != 1 || len(b.Services) != 1 || len(a.Causes) != 1 {
		t.Error("merging writes to what it merges")
	}
	if mergeChanges(nil, a) != a {
		t.Error("the first changes are not taken as they are")
	}
}
