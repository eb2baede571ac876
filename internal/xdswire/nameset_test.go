package xdswire

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNameSet(t *testing.T) {
	sets := NewNameSets()
	abc := sets.Of([]string{"c", "a", "b", "a"})
	if !slices.Equal(abc.Names(), []string{"a", "b", "c"}) || abc.Len() != 3 || abc.Bytes() != 3 {
		t.Errorf("set %v, length %d, bytes %d", abc.Names(), abc.Len(), abc.Bytes())
	}
	if !abc.Has("b") || abc.Has("d") || abc.Has("") {
		t.Error("Has is wrong")
	}
	tests := []struct {
		what      string
		got, want *NameSet
	}{
		{"same names in another order", sets.Of([]string{"b", "c", "a"}), abc},
		{"with", sets.With(sets.Of([]string{"b"}), []string{"c", "a", "b"}), abc},
		{"with nothing new", sets.With(abc, []string{"a"}), abc},
		{"without", sets.Without(sets.Of([]string{"a", "b", "c", "d"}), []string{"d", "e"}), abc},
		{"without all", sets.Without(abc, []string{"a", "b", "c"}), nil},
		{"nothing", sets.Of(nil), nil},
		{"with on nothing", sets.With(nil, []string{"a", "b", "c"}), abc},
		{"without on nothing", sets.Without(nil, []string{"a"}), nil},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.what, tt.got.Names(), tt.want.Names())
		}
	}
	var none *NameSet
	if none.Has("a") || none.Len() != 0 || none.Bytes() != 0 || none.Names() != nil {
		t.Error("the nil set is not empty")
	}
	if sets.Of([]string{"ab"}) == sets.Of([]string{"a", "b"}) {
		t.Error("different sets are one")
	}
	runtime.KeepAlive(abc)
}

func TestNameSetsDoNotWriteToTheirArguments(t *testing.T) {
	sets := NewNameSets()
	names := []string{"c", "a", "b"}
	sets.Of(names)
	s := sets.Of([]string{"a", "b"})
	sets.With(s, names)
	sets.Without(s, names)
	if !slices.Equal(names, []string{"c", "a", "b"}) || !slices.Equal(s.Names(), []string{"a", "b"}) {
		t.Errorf("changed: %v, %v", names, s.Names())
	}
}

// TestNameSetsAddAndRemoveLikeSets compares random steps with a map. Each set must
// equal the one made from its names at once.
func TestNameSetsAddAndRemoveLikeSets(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	sets := NewNameSets()
	var s *NameSet
	model := map[string]bool{}
	for range 2_000 {
		names := make([]string, rnd.IntN(20))
		for i := range names {
			names[i] = fmt.Sprint(rnd.IntN(400))
		}
		add := rnd.IntN(2) == 0
		for _, n := range names {
			if delete(model, n); add {
				model[n] = true
			}
		}
		if add {
			s = sets.With(s, names)
		} else {
			s = sets.Without(s, names)
		}
		want := slices.Sorted(maps.Keys(model))
		if !slices.Equal(s.Names(), want) || s.Bytes() != len(strings.Join(want, "")) || s != sets.Of(want) {
			t.Fatalf("got %v of %d bytes, want %v", s.Names(), s.Bytes(), want)
		}
		other := sets.Of(names)
		lacking := slices.ContainsFunc(names, func(n string) bool { return !model[n] })
		if s.HasAll(other) == lacking || !s.HasAll(s) || !s.HasAll(nil) || !sets.With(s, names).HasAll(s) {
			t.Fatalf("HasAll(%v) is %v for %v", names, !lacking, want)
		}
	}
}

// TestNameSetsShareChunks: sets that differ in one name share nearly all chunks, whatever
// way they were made.
func TestNameSetsShareChunks(t *testing.T) {
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprintf("name-%d", i)
	}
	sets := NewNameSets()
	all := sets.Of(names)
	for what, other := range map[string]*NameSet{
		"added": sets.With(all, []string{"name-x"}), "removed": sets.Without(all, names[:1]),
		"made": sets.Of(append([]string{"name-y"}, names...)),
	} {
		shared, size := 0, 0
		for _, c := range other.Chunks() {
			if size += c.Len(); slices.Contains(all.Chunks(), c) {
				shared += c.Len()
			}
		}
		// The longest chunk of 5,000 random names has about 600.
		if size != other.Len() || shared < size-2000 {
			t.Errorf("%s: %d of %d names are in shared chunks", what, shared, size)
		}
	}
}

// BenchmarkNameSetsWith adds a name to a large set and removes it.
func BenchmarkNameSetsWith(b *testing.B) {
	names := make([]string, 99_000)
	for i := range names {
		names[i] = fmt.Sprintf("outbound|%d||service.namespace.svc.cluster.local", i)
	}
	sets := NewNameSets()
	s := sets.Of(names)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		more := []string{fmt.Sprint(i)}
		if sets.Without(sets.With(s, more), more) != s {
			b.Fatal("another set came back")
		}
	}
}

func TestUnusedNameSetsAreFreed(t *testing.T) {
	sets := NewNameSets()
	kept := sets.Of([]string{"kept"})
	for i := range 100 {
		sets.Of([]string{fmt.Sprint(i), "x"})
	}
	for end := time.Now().Add(2 * time.Minute); sets.Size() > 1; runtime.GC() {
		if time.Now().After(end) {
			t.Fatalf("%d sets are kept, want 1", sets.Size())
		}
	}
	if sets.Of([]string{"kept"}) != kept {
		t.Error("a set in use was forgotten")
	}
	runtime.KeepAlive(kept)
}

func TestSubscription(t *testing.T) {
	sets := NewNameSets()
	if (Subscription{}).Has("a") {
		t.Error("nothing covers a name")
	}
	if !(Subscription{Wildcard: true}).Has("a") {
		t.Error("the wildcard does not cover a name")
	}
	if s := (Subscription{Names: sets.Of([]string{"a"})}); !s.Has("a") || s.Has("b") {
		t.Error("names cover the wrong ones")
	}
}
