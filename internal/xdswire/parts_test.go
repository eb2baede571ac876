package xdswire

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestPartsEqualSortedList: after random changes, a list has the parts of a map in the
// order of their names. Its sum depends only on its content.
func TestPartsEqualSortedList(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	model := make(map[string]*Part)
	var list *Parts
	for step := range 300 {
		changes := make(map[string]*Part)
		for range 1 + rnd.IntN(40) {
			name := fmt.Sprint(rnd.IntN(500))
			changes[name] = nil
			if rnd.IntN(3) > 0 {
				p := NewPart(name, []byte(fmt.Sprintf("<%s at %d>", name, step)))
				changes[name] = &p
			}
		}
		list = list.With(changes)
		for name, p := range changes {
			if model[name] = p; p == nil {
				delete(model, name)
			}
		}
		var want, got []byte
		for _, name := range slices.Sorted(maps.Keys(model)) {
			want = append(want, model[name].Wire()...)
		}
		for _, c := range list.chunks {
			got = append(got, c.encoding()...)
		}
		if !bytes.Equal(got, want) || list.size != len(want) {
			t.Fatalf("step %d: got %s\nwant %s", step, got, want)
		}
		if fresh := (*Parts)(nil).With(model); fresh.sum != list.sum {
			t.Fatalf("step %d: equal lists have sums %x and %x", step, list.sum, fresh.sum)
		}
	}
}

// TestPartsShareMemory: a list with one other part shares the memory of the rest.
func TestPartsShareMemory(t *testing.T) {
	parts := make(map[string]*Part)
	for i := range 1000 {
		p := NewPart(fmt.Sprintf("%04d", i), []byte("text"))
		parts[p.Name] = &p
	}
	list := (*Parts)(nil).With(parts)
	p := NewPart("0500", []byte("other text"))
	next := list.With(map[string]*Part{p.Name: &p})
	shared := make(map[*byte]bool)
	for _, c := range list.chunks {
		for i := range c.encoding() {
			shared[&c.encoding()[i]] = true
		}
	}
	own := 0
	for _, c := range next.chunks {
		if !shared[&c.encoding()[0]] {
			own += len(c.encoding())
		}
	}
	if own != len(p.Wire()) || list.sum == next.sum {
		t.Errorf("%d of %d bytes are not shared, want %d; sums %x and %x", own, next.size, len(p.Wire()), list.sum, next.sum)
	}
}

// TestResourceOfParts: a resource of parts has the bytes of the message in both variants.
func TestResourceOfParts(t *testing.T) {
	var e Encoder
	parts := make(map[string]*Part)
	var body []byte
	for i := range 100 {
		p := NewPart(fmt.Sprintf("%04d", i), []byte(fmt.Sprintf("part %d;", i)))
		parts[p.Name] = &p
		body = append(body, p.Wire()...)
	}
	r := e.Parted(RouteType, "r", []byte("head;"), (*Parts)(nil).With(parts), []byte("tail"))
	want := e.Raw(RouteType, "r", []byte("head;"), body, []byte("tail"))
	if !bytes.Equal(r.Message(), want.Message()) || !bytes.Equal(r.SotW(), want.SotW()) || r.Size() != want.Size() {
		t.Errorf("got %q of %d bytes, want %q of %d", r.SotW(), r.Size(), want.SotW(), want.Size())
	}
	for _, v := range []Variant{SotW, Delta} {
		got := NewFrame(Header{}, NewBody(v, r, want))
		if whole := NewFrame(Header{}, NewBody(v, want, want)); got.Size() != whole.Size() || got.Resources() != 2 {
			t.Errorf("%v: a frame of %d bytes with %d resources, want %d with 2", v, got.Size(), got.Resources(), whole.Size())
		}
	}
	other := e.Parted(RouteType, "r", []byte("head;"), (*Parts)(nil).With(parts), []byte("other"))
	if same := e.Parted(RouteType, "r", []byte("head;"), (*Parts)(nil).With(parts), []byte("tail")); same.Version != r.Version || other.Version == r.Version {
		t.Errorf("versions %s and %s of equal resources, %s of another one", r.Version, same.Version, other.Version)
	}
}
