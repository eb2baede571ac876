package xdswire

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
)

// TestListEqualsModel: Each list of a random history has the resources of a map with the same
// changes, and is made of the chunks of a list that is made from nothing.
func TestListEqualsModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var e Encoder
	now := map[string]*Resource{}
	var list *List
	var history []*List
	for step := range 300 {
		var changed []*Resource
		var removed []string
		for range rng.IntN(20) {
			name := fmt.Sprintf("r%d", rng.IntN(500))
			if rng.IntN(3) == 0 {
				removed = append(removed, name)
			} else {
				changed = append(changed, e.Raw(RouteType, name, []byte{byte(rng.IntN(3))}))
			}
		}
		changed = sortedByName(changed)
		slices.Sort(removed)
		removed = slices.DeleteFunc(slices.Compact(removed), func(name string) bool {
			return slices.ContainsFunc(changed, func(r *Resource) bool { return r.Name == name })
		})
		list = list.Edit(changed, removed)
		for _, name := range removed {
			delete(now, name)
		}
		for _, r := range changed {
			now[r.Name] = r
		}
		want := sortedByName(slices.Collect(maps.Values(now)))
		if got := slices.Collect(list.All); !slices.Equal(got, want) || list.Len() != len(want) {
			t.Fatalf("step %d: %d resources, want %d, or others", step, len(got), len(want))
		}
		fresh := SharedList(want...)
		if !slices.Equal(fresh.all(), list.all()) || fresh.Sum() != list.Sum() {
			t.Fatalf("step %d: a list made from nothing differs", step)
		}
		name := fmt.Sprintf("r%d", rng.IntN(500))
		if got := list.Get(name); got != now[name] {
			t.Fatalf("step %d: Get(%s) returns %v, want %v", step, name, got, now[name])
		}
		first, _ := slices.BinarySearchFunc(want, name, byName)
		if got := slices.Collect(list.From(name)); !slices.Equal(got, want[first:]) {
			t.Fatalf("step %d: %d resources from %s on, want %d", step, len(got), name, len(want[first:]))
		}
		history = append(history, list)
		checkSince(t, list, history[rng.IntN(len(history))])
		checkSince(t, list, nil)
		checkSince(t, nil, list)
	}
	if len(list.chunks) < 5 {
		t.Errorf("%d resources are in %d chunks", list.Len(), len(list.chunks))
	}
}

func sortedByName(resources []*Resource) []*Resource {
	slices.SortStableFunc(resources, func(a, b *Resource) int { return byName(a, b.Name) })
	return slices.CompactFunc(resources, func(a, b *Resource) bool { return a.Name == b.Name })
}

// checkSince compares the result of Since with a comparison of maps.
func checkSince(t *testing.T, list, old *List) {
	t.Helper()
	before := map[string]*Resource{}
	for r := range old.All {
		before[r.Name] = r
	}
	var changed, removed []string
	added := 0
	for r := range list.All {
		was := before[r.Name]
		if delete(before, r.Name); was == nil {
			added++
		}
		if was == nil || !was.Equal(r) {
			changed = append(changed, r.Name)
		}
	}
	removed = slices.Sorted(maps.Keys(before))
	gotChanged, gotAdded, gotRemoved := list.Since(old)
	if d := cmp.Diff(changed, slices.Clip(NewList(gotChanged...).Names())); d != "" && len(changed)+len(gotChanged) > 0 {
		t.Fatalf("changed (-want +got):\n%s", d)
	}
	if d := cmp.Diff(removed, gotRemoved); d != "" && len(removed)+len(gotRemoved) > 0 || gotAdded != added {
		t.Fatalf("%d added, want %d; removed (-want +got):\n%s", gotAdded, added, d)
	}
}

// TestListsShareChunks: Lists that differ in one resource share all chunks but one, and a chunk that
// no list keeps is collected.
func TestListsShareChunks(t *testing.T) {
	var e Encoder
	var resources []*Resource
	for i := range 2000 {
		resources = append(resources, e.Raw(RouteType, fmt.Sprintf("r%04d", i), nil))
	}
	list := SharedList(resources...)
	other := slices.Clone(resources)
	other[1000] = e.Raw(RouteType, "r1000", []byte("another one"))
	differ := 0
	for i, c := range SharedList(other...).chunks {
		if c != list.chunks[i] {
			differ++
		}
	}
	if differ != 1 {
		t.Errorf("%d chunks differ, want 1", differ)
	}
}

// TestBodiesJoinSmallResources: The bytes of a body do not change when its small resources share
// buffers, which they do after many responses. Large resources are not copied.
func TestBodiesJoinSmallResources(t *testing.T) {
	var e Encoder
	var resources []*Resource
	for i := range 500 {
		text := fmt.Sprintf("text of %d", i)
		if i%100 == 0 {
			text = string(make([]byte, joinedSize))
		}
		resources = append(resources, e.Raw(RouteType, fmt.Sprintf("r%03d", i), []byte(text)))
	}
	large := SharedList(resources...)
	parts := e.Parted(RouteType, "parted", []byte("head"), (&Parts{}).With(map[string]*Part{"p": new(NewPart("p", []byte("part")))}), []byte("tail"))
	for _, v := range []Variant{SotW, Delta} {
		for _, of := range []*List{large, NewList(resources...), NewList(parts)} {
			var want []byte
			for r := range of.All {
				if v == Delta {
					want = append(want, r.Delta()...)
				} else {
					want = append(want, r.SotW()...)
				}
			}
			var lengths []int
			for range joinAfter + 1 {
				b := of.Body(v)
				var buffers mem.BufferSlice
				for _, c := range b.list.all() {
					buffers = c.appendTo(buffers, v)
				}
				if got := buffers.Materialize(); !bytes.Equal(got, want) || b.size != len(want) {
					t.Fatalf("%v: %d bytes, reported are %d, want %d, or other bytes", v, len(got), b.size, len(want))
				}
				lengths = append(lengths, len(buffers))
			}
			if of.Len() > 1 && (lengths[0] != of.Len() || lengths[joinAfter] > of.Len()/10) {
				t.Errorf("%v: the lengths of the lists of %d resources are %v", v, of.Len(), lengths)
			}
		}
	}
}
