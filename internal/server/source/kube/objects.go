package kube

import (
	"errors"
	"fmt"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// put handles a new or changed object, and appends the events to deliver.
func (f *follower) put(events []snapshot.Event, o object) []snapshot.Event {
	old, was := f.known[o.key]
	more, change := int64(0), source.Updated
	if !was {
		more, change = 1, source.Added
	}
	if !f.admit(o.key, more, o.size-old.size) {
		if !old.used {
			events = f.close(events, o.key.namespace)
		}
		return events // the last version stays
	}
	f.Count(&f.res, change)
	now := knownObject{version: o.version, size: o.size, used: old.used, closed: old.closed}
	if f.res.Kind == source.KindCustomResource {
		f.known[o.key] = now
		f.definitions.set(o.key.name, true)
		return events
	}
	r, err := o.convert(f.conv)
	r.Security = r.Security || f.res.Security
	if f.res.Kind == snapshot.KindConfigMap && r.Key.Kind != f.res.Kind {
		r, err = source.Result{}, nil // settings, which another follower reads
	}
	good := old.used && !old.closed
	f.report(o.key, &r, err, good)
	switch {
	case err != nil && (good || r.Closed == nil): // the last version stays
	case err != nil:
		now.used, now.closed = true, true
		events = append(events, snapshot.Event{Key: r.Key, Object: r.Closed})
	case r.Object != nil:
		now.used, now.closed = true, false
		events = append(events, snapshot.Event{Key: r.Key, Object: r.Object})
	case old.used:
		now.used = false
		events = append(events, snapshot.Event{Key: f.key(o.key)})
	}
	f.known[o.key] = now
	return events
}

// report reports the faults of an object. The zero result has none.
func (f *follower) report(key objectKey, r *source.Result, err error, used bool) {
	var out []string
	var kinds []fields.ProblemKind
	meaning := ""
	switch {
	case used:
		meaning = "; its last good version stays in use"
	case r.Closed != nil:
		meaning = "; " + source.ClosedMeaning
	}
	for _, fault := range faultsOf(err) {
		out, kinds = append(out, shorten(fault.Error())+meaning), append(kinds, fields.Refused)
	}
	most := maxReasons
	if f.res.Object != "" {
		most = maxReasonsOfOne
	}
	for _, w := range r.Warnings[:min(len(r.Warnings), most)] {
		out, kinds = append(out, shorten(w.Error())), append(kinds, w.Kind)
	}
	if more := len(r.Warnings) - most; more > 0 {
		out = append(out, fmt.Sprintf("%d more reasons are not shown", more))
		kinds = append(kinds, fields.Unused)
	}
	k := f.key(key)
	f.health.report(k, Problem{
		Object: fields.ObjectName(k), Key: k, Kinds: kinds, Suppress: r.Suppress, Reasons: out, Since: f.Now(), Unenforced: r.Unenforced(err, used), Shared: r.Shared,
	}, f.Log)
}

// faultsOf returns the faults of an error.
func faultsOf(err error) []error {
	if all, ok := errors.AsType[fields.Faults](err); ok {
		return all.Unwrap()
	}
	if err != nil {
		return []error{err}
	}
	return nil
}

// maxReasons bounds the parts without effect that are shown of one object, maxReasonsOfOne the parts of an
// object that is the only one of its resource.
const (
	maxReasons      = 10
	maxReasonsOfOne = 200
)

// remove forgets an object and appends the event to deliver.
func (f *follower) remove(events []snapshot.Event, key objectKey) []snapshot.Event {
	delete(f.left, key)
	old, was := f.known[key]
	if !was {
		return events
	}
	delete(f.known, key)
	f.Count(&f.res, source.Deleted)
	_ = f.hold(-1, -old.size) // less is never too much
	f.report(key, &source.Result{}, nil, false)
	f.refill()
	if f.res.Kind == source.KindCustomResource {
		f.definitions.set(key.name, false)
	}
	if old.used {
		events = append(events, snapshot.Event{Key: f.key(key)})
	}
	return events
}

// replace removes the objects that a complete list lacks.
func (f *follower) replace(seen map[objectKey]bool) {
	var events []snapshot.Event
	for key := range f.known {
		if !seen[key] {
			events = f.remove(events, key)
		}
	}
	f.apply(events)
	if f.res.Kind == source.KindCustomResource {
		f.definitions.complete()
	}
}

func (f *follower) apply(events []snapshot.Event) {
	if len(events) > 0 {
		f.sink.Apply(events)
	}
}

func (f *follower) key(k objectKey) snapshot.Key {
	return snapshot.Key{Kind: f.res.Kind, Cluster: f.Cluster, Namespace: k.namespace, Name: k.name}
}

// refill reports another object without effect when there is room for it again.
func (f *follower) refill() {
	if !f.res.Unread || !f.health.roomFor(len(f.known)) {
		return
	}
	for key := range f.known {
		if !f.health.reported(f.key(key)) {
			r := f.conv.Unread(&f.res, key.namespace, key.name)
			f.report(key, &r, nil, false)
			return
		}
	}
}
