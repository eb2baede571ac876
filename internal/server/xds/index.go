package xds

import (
	"iter"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
)

// A change must cost nothing for the streams and views that it does not
// concern, so both are found by what they read.

// index finds sets of values by key.
type index[K, V comparable] map[K]map[V]struct{}

func (x index[K, V]) add(k K, v V) {
	if x[k] == nil {
		x[k] = make(map[V]struct{})
	}
	x[k][v] = struct{}{}
}

func (x index[K, V]) remove(k K, v V) {
	if delete(x[k], v); len(x[k]) == 0 {
		delete(x, k)
	}
}

// streams are the attached streams, found by what their views are chosen by.
type streams struct {
	all                map[*subscriber]struct{}
	byPod, byNamespace index[string, *subscriber]
}

func newStreams() streams {
	return streams{make(map[*subscriber]struct{}), make(index[string, *subscriber]), make(index[string, *subscriber])}
}

// add notes a stream, which must say what it reads.
func (s *streams) add(sub *subscriber) {
	s.all[sub] = struct{}{}
	s.byPod.add(sub.pod, sub)
	s.byNamespace.add(sub.namespace, sub)
}

func (s *streams) remove(sub *subscriber) {
	delete(s.all, sub)
	s.byPod.remove(sub.pod, sub)
	s.byNamespace.remove(sub.namespace, sub)
}

// concerned yields the streams whose views may be others after the changes, all
// of them or those that read what changed. It may yield one twice.
func (s *streams) concerned(c *snapshot.Changes, all bool) iter.Seq[*subscriber] {
	return func(yield func(*subscriber) bool) {
		each := func(subs map[*subscriber]struct{}) bool {
			for sub := range subs {
				if !yield(sub) {
					return false
				}
			}
			return true
		}
		if all {
			each(s.all)
			return
		}
		for pod := range c.Pods {
			if !each(s.byPod[pod]) {
				return
			}
		}
		for namespace := range c.Namespaces {
			if !each(s.byNamespace[namespace]) {
				return
			}
		}
	}
}

// liveViews are the views in use, found by what they read.
type liveViews struct {
	all     map[xdsgen.View]*liveView
	readers index[snapshot.Kinds, *liveView]
	// stale are those that may miss more than the next changes name: nothing was
	// listed yet or for a while, or listing failed.
	stale map[*liveView]struct{}
	// unused are those that may be without a stream since the last sweep.
	unused map[*liveView]struct{}
}

func newLiveViews() liveViews {
	return liveViews{
		make(map[xdsgen.View]*liveView), make(index[snapshot.Kinds, *liveView]),
		make(map[*liveView]struct{}), make(map[*liveView]struct{}),
	}
}

// of finds or makes the live view; of no view it is nil.
func (l *liveViews) of(v xdsgen.View) *liveView {
	if v == nil {
		return nil
	}
	lv := l.all[v]
	if lv == nil {
		lv = &liveView{view: v, streams: make(map[*subscriber]struct{}), entries: make(map[string]*unit)}
		l.all[v] = lv
		l.readers.add(v.Reads(), lv)
		l.stale[lv], l.unused[lv] = struct{}{}, struct{}{}
	}
	return lv
}

func (l *liveViews) remove(lv *liveView) {
	delete(l.all, lv.view)
	l.readers.remove(lv.view.Reads(), lv)
	delete(l.stale, lv)
	delete(l.unused, lv)
}

// isStale reports whether the view is to be listed whole.
func (l *liveViews) isStale(lv *liveView) bool {
	_, ok := l.stale[lv]
	return ok
}

// touched yields the views that changes may touch and that are not stale. Nil
// changes touch none.
func (l *liveViews) touched(c *snapshot.Changes) iter.Seq[*liveView] {
	return func(yield func(*liveView) bool) {
		if c == nil {
			return
		}
		kinds := c.Kinds()
		for reads, views := range l.readers {
			if !c.Everywhere && reads&kinds == 0 {
				continue
			}
			for lv := range views {
				if !l.isStale(lv) && !yield(lv) {
					return
				}
			}
		}
	}
}
