package xds

import (
	"iter"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
)

// A change must cost nothing for streams and views that it does not concern.
// Indexes find both by the facts that they read.

// index maps a key to a set of values.
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

// streamIndex finds the attached streams by the pod and the namespace on which the
// choice of their views depends.
type streamIndex struct {
	all                map[*subscriber]struct{}
	byPod, byNamespace index[string, *subscriber]
}

func newStreamIndex() streamIndex {
	return streamIndex{make(map[*subscriber]struct{}), make(index[string, *subscriber]), make(index[string, *subscriber])}
}

// add adds a stream whose pod and namespace are set.
func (s *streamIndex) add(sub *subscriber) {
	s.all[sub] = struct{}{}
	s.byPod.add(sub.pod, sub)
	s.byNamespace.add(sub.namespace, sub)
}

func (s *streamIndex) remove(sub *subscriber) {
	delete(s.all, sub)
	s.byPod.remove(sub.pod, sub)
	s.byNamespace.remove(sub.namespace, sub)
}

// concerned yields the streams whose choice of views the changes may affect: those that
// read a changed pod or namespace, and others that a function, which may be nil, names. It
// may repeat a stream.
func (s *streamIndex) concerned(c *snapshot.Changes, others func(proxy.Node) bool) iter.Seq[*subscriber] {
	return func(yield func(*subscriber) bool) {
		if others != nil {
			for sub := range s.all {
				if others(sub.node) && !yield(sub) {
					return
				}
			}
		}
		for pod := range c.Pods {
			for sub := range s.byPod[pod] {
				if !yield(sub) {
					return
				}
			}
		}
		for namespace := range c.Namespaces {
			for sub := range s.byNamespace[namespace] {
				if !yield(sub) {
					return
				}
			}
		}
	}
}

// viewIndex finds the views in use by the kinds of facts that they read.
type viewIndex struct {
	all     map[units.View]*liveView
	readers index[snapshot.Kinds, *liveView]
	// stale views must list all their units: they were not listed yet or not for
	// a while, or listing failed.
	stale map[*liveView]struct{}
	// unused views may have lost their last stream since the last sweep.
	unused map[*liveView]struct{}
}

func newViewIndex() viewIndex {
	return viewIndex{
		make(map[units.View]*liveView), make(index[snapshot.Kinds, *liveView]),
		make(map[*liveView]struct{}), make(map[*liveView]struct{}),
	}
}

// of returns the live view of a view and makes it if needed; nil for a nil view.
func (l *viewIndex) of(v units.View) *liveView {
	if v == nil {
		return nil
	}
	lv := l.all[v]
	if lv == nil {
		lv = &liveView{view: v, streams: make(map[*subscriber]struct{}), entries: make(map[units.Key]*unit)}
		l.all[v] = lv
		l.readers.add(v.Keys().Reads(), lv)
		l.stale[lv], l.unused[lv] = struct{}{}, struct{}{}
	}
	return lv
}

func (l *viewIndex) remove(lv *liveView) {
	delete(l.all, lv.view)
	l.readers.remove(lv.view.Keys().Reads(), lv)
	delete(l.stale, lv)
	delete(l.unused, lv)
}

// isStale reports whether the view must list all its units.
func (l *viewIndex) isStale(lv *liveView) bool {
	_, ok := l.stale[lv]
	return ok
}

// touched yields the views that the changes may affect, stale ones excepted. Nil
// changes affect none.
func (l *viewIndex) touched(c *snapshot.Changes) iter.Seq[*liveView] {
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
