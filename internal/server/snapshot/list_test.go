package snapshot_test

import (
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestList compares lists of many lengths with the values from which they were made.
func TestList(t *testing.T) {
	t.Parallel()
	var values []int
	for length := range 100 {
		l := snapshot.ListOf(values)
		if got := l.Slice(); !slices.Equal(got, values) || l.Len() != length || l.Empty() != (length == 0) {
			t.Fatalf("the list of %v is %v", values, got)
		}
		for i, want := range values {
			if got := l.At(i); got != want {
				t.Errorf("At(%d) of %d values = %d, want %d", i, length, got, want)
			}
		}
		if l != snapshot.ListOf(slices.Clone(values)) {
			t.Errorf("lists of %v differ", values)
		}
		values = append(values, length*length)
		if l == snapshot.ListOf(values) {
			t.Errorf("the list of %v is also the list without the last value", values)
		}
	}
}
