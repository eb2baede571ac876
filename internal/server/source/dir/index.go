package dir

import (
	"cmp"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// index maps each object to the files that define it. Of several definitions the
// first one by path and position counts.
type index struct {
	givers    map[snapshot.Key][]*fileObject // in order; the first counts
	delivered map[snapshot.Key]snapshot.Object
	touched   map[snapshot.Key]bool // objects that may have changed since the last batch
	doubles   map[snapshot.Key]bool // objects with several definitions
}

func newIndex() index {
	return index{
		givers: map[snapshot.Key][]*fileObject{}, delivered: map[snapshot.Key]snapshot.Object{},
		touched: map[snapshot.Key]bool{}, doubles: map[snapshot.Key]bool{},
	}
}

// replace replaces the objects of a file's old version by the objects of its new one.
func (x *index) replace(old, new []*fileObject) {
	stays := make(map[*fileObject]bool, len(new))
	for _, e := range new {
		stays[e] = true
	}
	for _, e := range old {
		if stays[e] {
			delete(stays, e)
			continue
		}
		x.touched[e.key] = true
		x.givers[e.key] = slices.DeleteFunc(x.givers[e.key], func(g *fileObject) bool { return g == e })
		if len(x.givers[e.key]) == 0 {
			delete(x.givers, e.key)
		}
	}
	for _, e := range new {
		if !stays[e] {
			continue
		}
		x.touched[e.key] = true
		list := x.givers[e.key]
		i, _ := slices.BinarySearchFunc(list, e, byPlace)
		x.givers[e.key] = slices.Insert(list, i, e)
	}
}

func byPlace(a, b *fileObject) int {
	return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.line, b.line), cmp.Compare(a.nth, b.nth))
}

// delta counts the changes of a batch.
type delta struct{ added, changed, removed int }

// take returns the events for the objects that changed, in key order.
func (x *index) take() ([]snapshot.Event, delta) {
	var events []snapshot.Event
	var d delta
	for key := range x.touched {
		givers := x.givers[key]
		delete(x.doubles, key)
		if len(givers) > 1 {
			x.doubles[key] = true
		}
		var now snapshot.Object
		if len(givers) > 0 {
			now = givers[0].object
		}
		before := x.delivered[key]
		if now == before {
			continue
		}
		events = append(events, snapshot.Event{Key: key, Object: now})
		switch {
		case now == nil:
			d.removed++
			delete(x.delivered, key)
			continue
		case before == nil:
			d.added++
		default:
			d.changed++
		}
		x.delivered[key] = now
	}
	clear(x.touched)
	slices.SortFunc(events, func(a, b snapshot.Event) int {
		return cmp.Or(cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return events, d
}
