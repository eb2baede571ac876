package xds

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// claim makes a unit with the id make the listener x with a content; an empty content
// removes the unit.
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

// TestContestedNameHasOneOwner: If several units make a resource of one name, the unit
// with the first id provides it, whatever the order of changes.
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
		if r := s.sub.assigned.Load().types[lds].views[0].state.Load().get("x"); r != nil {
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

// TestAbandonedViewDoesNotChange: Until streams see their new views they use the old ones.
// These must not show the new snapshot meanwhile: the streams may not be allowed to see
// it, or may lack a part of it.
func TestAbandonedViewDoesNotChange(t *testing.T) {
	h, w := newUnstartedHub(), newTestMesh()
	h.Update(w.set("CDS", "shared", "a", "1").set("CDS", "other", "a", "2").take())
	s := newTestSession(t, h, "p", xdswire.SotW, nil)
	h.deliver()
	left := s.sub.assigned.Load().types[cds].views[0]
	before := left.state.Load()
	h.Update(w.set("CDS", "shared", "a", "").view("p", "other").take())
	h.deliver()
	if left.state.Load() != before {
		t.Error("the view that the stream left changed")
	}
	now := s.sub.assigned.Load().types[cds].views[0]
	if now == left || now.state.Load().get("a") == nil {
		t.Error("the stream's new view lacks its cluster")
	}
}
