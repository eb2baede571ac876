package xdswire

import (
	"bytes"
	"fmt"
	"testing"
)

// TestBodiesShareGroups: long lists with the same small resources share buffers, and a body has the
// bytes of its resources in any case.
func TestBodiesShareGroups(t *testing.T) {
	var e Encoder
	list := make([]*Resource, 10*longList+1)
	for i := range list {
		text := fmt.Sprintf("text of %d", i)
		if i == 3*groupSize {
			text = string(make([]byte, 2<<10)) // a large one
		}
		list[i] = e.Raw(RouteType, fmt.Sprint("r", i), []byte(text))
	}
	other := append([]*Resource{e.Raw(RouteType, "other", []byte("other"))}, list[1:]...)
	for _, v := range []Variant{SotW, Delta} {
		var bodies []Body
		for _, resources := range [][]*Resource{list, list, other} {
			var want []byte
			for _, r := range resources {
				want = append(want, r.wire[r.startIn(v):]...)
			}
			b := NewBody(v, resources...)
			if got := b.buffers.Materialize(); !bytes.Equal(got, want) || b.resources != len(resources) {
				t.Errorf("%v: %d resources in %d bytes, want %d in %d, or other bytes", v, b.resources, len(got), len(resources), len(want))
			}
			bodies = append(bodies, b)
		}
		// The last resource is alone, one group has a large resource, and another one differs.
		groups := len(list)/groupSize - 1
		for i, want := range []int{0, groups, groups - 1} {
			if got := len(bodies[i].groups); got != want {
				t.Errorf("%v: body %d has %d groups, want %d", v, i, got, want)
			}
		}
		if bodies[1].groups[5] != bodies[2].groups[5-1] {
			t.Errorf("%v: bodies with equal resources have different buffers", v)
		}
	}
}
