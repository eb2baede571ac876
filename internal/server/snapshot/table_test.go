package snapshot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// TestTableVersions changes tables at random, and compares all versions with maps.
func TestTableVersions(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	type version struct {
		table *Table[string, int]
		want  map[string]*int
	}
	versions := []version{{nil, map[string]*int{}}}
	for range 50 {
		last := versions[len(versions)-1]
		changes, want := map[string]*int{}, maps.Clone(last.want)
		for range rnd.IntN(100) {
			k, v := fmt.Sprint(rnd.IntN(300)), new(int)
			if changes[k], want[k] = v, v; rnd.IntN(3) == 0 {
				changes[k] = nil
				delete(want, k)
			}
		}
		for k, v := range changes {
			if want[k] = v; v == nil {
				delete(want, k)
			}
		}
		versions = append(versions, version{last.table.With(changes), want})
	}
	for i, v := range versions {
		got, before := map[string]*int{}, ""
		for k, fact := range v.table.All() {
			if k <= before {
				t.Fatalf("version %d: %s after %s", i, k, before)
			}
			got[k], before = fact, k
		}
		if !maps.Equal(got, v.want) || v.table.Len() != len(v.want) {
			t.Errorf("version %d: got %d facts, want %d", i, len(got), len(v.want))
		}
		for k := range 300 {
			if k := fmt.Sprint(k); v.table.Get(k) != v.want[k] {
				t.Errorf("version %d: fact %s: got %v, want %v", i, k, v.table.Get(k), v.want[k])
			}
		}
	}
	if last := versions[50].table; last.With(nil) != last {
		t.Error("no changes make another table")
	}
}
