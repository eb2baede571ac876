package xds

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// claim has a unit of that id make the listener x with a content; the empty
// content has the unit go.
func (w *testMesh) claim(id, content string) *testMesh {
	w.set("LDS", "shared", id, content)
	if content != "" {
		key := "LDS/shared/" + id
		next := *w.s
		next.Services = next.Services.With(map[string]*snapshot.MeshService{key: {Host: "x", Name: content}})
		w.s = &next
	}
	return w
}

// TestContestedNameHasOneOwner: when several units make a resource of one
// name, the first of them by id gives it, whatever came, changed or went last.
func TestContestedNameHasOneOwner(t *testing.T) {
	h, w := newUnstartedHub(), newTestMesh()
	h.Update(w.take())
	s := newTestSession(t, h, "p", xdswire.SotW, nil)
	for i, step := range []struct{ change, want string }{
		{"b=second", "second"},
		{"a=first", "first"},
		{"b=again", "first"},
		{"c=third", "first"},
		{"a=", "again"},
		{"b=", "third"},
		{"c=", ""},
		{"b=second a=first", "first"},
		{"a= b=other", "other"},
	} {
		for c := range strings.FieldsSeq(step.change) {
			id, content, _ := strings.Cut(c, "=")
			w.claim(id, content)
		}
		h.Update(w.take())
		h.deliver()
		got := ""
		if r := s.sub.assigned.Load().types[lds].shared.state.Load().get("x"); r != nil {
			a, err := r.Any()
			if err != nil {
				t.Fatal(err)
			}
			got = decode(t, a)
		}
		if got != step.want {
			t.Errorf("step %d, %s: x is %q, want %q", i, step.change, got, step.want)
		}
	}
}

// TestViewThatAllLeaveStays: until streams see their new views they go on with
// the old ones, which must not meanwhile show the new snapshot: it need not be
// theirs to see, and may lack what is.
func TestViewThatAllLeaveStays(t *testing.T) {
	h, w := newUnstartedHub(), newTestMesh()
	h.Update(w.set("CDS", "shared", "a", "1").set("CDS", "other", "a", "2").take())
	s := newTestSession(t, h, "p", xdswire.SotW, nil)
	h.deliver()
	left := s.sub.assigned.Load().types[cds].shared
	before := left.state.Load()
	h.Update(w.set("CDS", "shared", "a", "").view("p", "other").take())
	h.deliver()
	if left.state.Load() != before {
		t.Error("the view that the stream left changed")
	}
	now := s.sub.assigned.Load().types[cds].shared
	if now == left || now.state.Load().get("a") == nil {
		t.Error("the stream's new view lacks its cluster")
	}
}
