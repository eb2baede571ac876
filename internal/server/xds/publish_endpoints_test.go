package xds

import (
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// hookedView calls a function whenever it returns a unit.
type hookedView struct {
	testView
	hook *func()
}

func (v hookedView) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	u := v.testView.Unit(s, k)
	if u != nil {
		(*v.hook)()
	}
	return u
}

// TestEndpointsOvertakeLongRounds: Endpoints that change while a round lists or generates
// other resources are shown before the round ends, and never replaced by older ones.
func TestEndpointsOvertakeLongRounds(t *testing.T) {
	for _, during := range []string{"list", "generate"} {
		t.Run(during, func(t *testing.T) {
			h, w := newUnstartedHub(), newTestMesh()
			listed := func() {}
			assign := h.cfg.Generator.Assign
			h.cfg.Generator.Assign = func(s *snapshot.Snapshot, n proxy.Node) units.Assignment {
				a := assign(s, n)
				a[xdswire.ClusterType] = units.Views{Shared: hookedView{testView{xdswire.ClusterType, "shared"}, &listed}}
				return a
			}
			w.set("CDS", "shared", "a", "a:1").set("EDS", "shared", "a", "a:1").set("EDS", "shared", "b", "b:1").set("EDS", "shared", "gone", "gone:1")
			h.Update(w.take())
			s := newTestSession(t, h, "p", xdswire.Delta, nil)
			h.deliver()
			content := func(typ int, name string) string {
				r := s.sub.assigned.Load().types[typ].views[0].state.Load().get(name)
				if r == nil {
					return ""
				}
				a, err := r.Any()
				if err != nil {
					t.Fatal(err)
				}
				return decode(t, a)
			}

			// The hub has this mail while it works on the change of the mesh and of a.
			steps := 0
			meanwhile := func() {
				switch steps++; steps {
				case 1:
					h.Update(w.set("EDS", "shared", "b", "b:2").set("EDS", "shared", "gone", "").set("EDS", "shared", "new", "new:1").take())
				case 2:
					t.Error("the round was expected to have one step")
				}
			}
			if during == "list" {
				listed = meanwhile
			} else {
				h.encoder.Encoded = func(url string) {
					if url == xdswire.ClusterType {
						meanwhile()
					}
				}
			}
			w.set("CDS", "shared", "a", "a:2")
			w.changes.Everywhere = true
			h.Update(w.take())
			h.deliver()
			if got := content(cds, "a"); got != "a:2" {
				t.Errorf("after the round cluster a is %q, want a:2", got)
			}
			if got := content(eds, "b"); got != "b:2" {
				t.Errorf("after the round the endpoints of b are %q, want b:2", got)
			}
			if got := h.Seq(); got != 2 {
				t.Errorf("all views show snapshot %d, want 2", got)
			}
			var published []uint64
			for _, r := range h.history.Timeline() {
				published = append(published, r.Snapshot)
			}
			if want := []uint64{1, 3, 2}; !slices.Equal(published, want) {
				t.Errorf("published the snapshots %v, want %v", published, want)
			}

			listed, h.encoder.Encoded = func() {}, nil
			h.deliver()
			if gone, added := content(eds, "gone"), content(eds, "new"); gone != "" || added != "new:1" || h.Seq() != 3 {
				t.Errorf("after the next round: gone is %q, new is %q, all views show snapshot %d", gone, added, h.Seq())
			}
		})
	}
}
