package order

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

type pair struct{ key, place int }

func byKey(a, b pair) int { return cmp.Compare(a.key, b.key) }

func pairs() []pair {
	random := rand.New(rand.NewPCG(1, 2))
	out := make([]pair, 500)
	for i := range out {
		out[i] = pair{random.IntN(50), i}
	}
	return out
}

// TestStable: the result equals the result of slices.SortStableFunc.
func TestStable(t *testing.T) {
	got, want := pairs(), pairs()
	Stable(got, byKey)
	slices.SortStableFunc(want, byKey)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestSort: the elements are in order, and all are there.
func TestSort(t *testing.T) {
	byAll := func(a, b pair) int { return cmp.Or(byKey(a, b), cmp.Compare(a.place, b.place)) }
	want := pairs()
	slices.SortFunc(want, byAll)
	got := pairs()
	Sort(got, byAll)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := Collect(slices.Values(pairs()), byAll); !slices.Equal(got, want) {
		t.Errorf("of a sequence: got %v, want %v", got, want)
	}
}
