package kube

import (
	"fmt"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// maxLeft bounds the number of objects of a resource that are counted as left out.
const maxLeft = 10_000

// admit reports whether the limits of the cluster leave room for a new or changed object. An
// object without room is left out: its last version, if there is one, stays in use.
func (f *follower) admit(key objectKey, more, bytes int64) bool {
	if err := f.hold(more, bytes); err != nil {
		f.leftWhy = err
		if len(f.left) < maxLeft {
			f.left[key] = struct{}{}
		}
		return false
	}
	delete(f.left, key)
	return true
}

// close delivers an object that stands for the security policies of a namespace that are left out.
// It stays until no object of the resource is left out.
func (f *follower) close(events []snapshot.Event, namespace string) []snapshot.Event {
	if _, is := f.closed[namespace]; is {
		return events
	}
	o := f.conv.LeftOut(&f.res, namespace)
	if o == nil {
		return events
	}
	f.closed[namespace] = o.Key()
	return append(events, snapshot.Event{Key: o.Key(), Object: o})
}

// reportLeft reports the number of objects that are left out. It logs the first and the
// last time.
func (f *follower) reportLeft() {
	var text string
	if n := len(f.left); n > 0 {
		text = fmt.Sprintf("%d objects left out or outdated: %v", n, f.leftWhy)
		if n == maxLeft {
			text = "at least " + text
		}
	}
	if text == "" {
		var events []snapshot.Event
		for _, key := range f.closed {
			events = append(events, snapshot.Event{Key: key})
		}
		clear(f.closed)
		f.apply(events)
	}
	before := f.health.leave(&f.res, text, f.IgnorePolicies, f.Now())
	switch {
	case text != "" && !before:
		f.Log.Warn("objects of the cluster are left out", "resource", f.res.GroupResource(), "reason", text)
	case text == "" && before:
		f.Log.Info("no object of the cluster is left out now", "resource", f.res.GroupResource())
	}
}
