package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	listTimeout = 15 * time.Second
	firstRetry  = 500 * time.Millisecond
	lastRetry   = 4 * time.Second
	watchTime   = 5 * time.Minute // the duration of a watch, before the next one begins
)

// Follower holds the functions that Follow calls, all from one goroutine.
type Follower[T Object] struct {
	// Set is called with a new or changed object, Gone with the name of a deleted one.
	Set  func(T)
	Gone func(namespace, name string)
	// Listed is called when Set and Gone were called for all differences to a list of the
	// objects: first and after each gap in the watch. The list begins with the oldest.
	Listed func()
	// Lost is called once with the error when the objects cannot be followed, Back when
	// they are followed again.
	Lost func(error)
	Back func()
	// Jitter returns a random number from 0 to 1, which spreads the requests of many
	// clients; default rand.Float64.
	Jitter func() float64
}

// Follow follows the objects that the options select until ctx ends. It retries after
// errors, with a backoff that doubles until a watch delivers an event.
func (o Objects[T, L]) Follow(ctx context.Context, selected metav1.ListOptions, f Follower[T]) {
	if f.Jitter == nil {
		f.Jitter = rand.Float64
	}
	known := make(map[types.NamespacedName]string)
	wait := firstRetry
	for lost := false; ; wait = min(2*wait, lastRetry) {
		err := o.followOnce(ctx, selected, &f, known, func() {
			if lost {
				lost = false
				f.Back()
			}
		}, func() { wait = firstRetry })
		if ctx.Err() != nil {
			return
		}
		if err != nil && !lost { // nil is the regular end of a watch
			lost = true
			f.Lost(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(float64(wait) * (0.5 + f.Jitter()/2))):
		}
	}
}

func nameOf(o Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// versionOf returns a string that is different after each change of an object.
func versionOf(o Object) string { return string(o.GetUID()) + " " + o.GetResourceVersion() }

// followOnce lists the objects and follows changes until the watch ends. It calls
// watching when the watch has begun, and heard with each change. known has the versions
// of the objects that Set got.
func (o Objects[T, L]) followOnce(
	ctx context.Context, selected metav1.ListOptions, f *Follower[T], known map[types.NamespacedName]string, watching, heard func(),
) error {
	set := func(object T) {
		if version, is := known[nameOf(object)]; is && version == versionOf(object) {
			return
		}
		known[nameOf(object)] = versionOf(object)
		f.Set(object)
	}
	gone := func(n types.NamespacedName) {
		if _, is := known[n]; is {
			delete(known, n)
			f.Gone(n.Namespace, n.Name)
		}
	}
	listing, cancel := context.WithTimeout(ctx, listTimeout)
	list, err := o.List(listing, selected)
	cancel()
	if err != nil {
		return fmt.Errorf("list %s: %w", o.resource, err)
	}
	objects, err := sorted[T](list)
	if err != nil {
		return fmt.Errorf("list %s: %w", o.resource, err)
	}
	missing := maps.Clone(known)
	for _, object := range objects {
		delete(missing, nameOf(object))
	}
	for n := range missing {
		gone(n)
	}
	for _, object := range objects {
		set(object)
	}
	f.Listed()
	ctx, cancel = context.WithTimeout(ctx, 2*watchTime)
	defer cancel()
	selected.ResourceVersion, selected.TimeoutSeconds = list.GetResourceVersion(), new(int64(watchTime.Seconds()))
	events, err := o.Watch(ctx, selected)
	if err != nil {
		return fmt.Errorf("watch %s: %w", o.resource, err)
	}
	defer events.Stop()
	watching()
	for event := range events.ResultChan() {
		switch object := event.Object.(type) {
		case T:
			heard()
			if event.Type == watch.Deleted {
				gone(nameOf(object))
			} else {
				set(object)
			}
		case *metav1.Status:
			return fmt.Errorf("watch %s: %w", o.resource, apierrors.FromObject(object))
		}
	}
	return nil
}

// sorted returns the objects of a list, the oldest first.
func sorted[T Object](list List) (out []T, err error) {
	err = meta.EachListItem(list, func(o runtime.Object) error {
		if object, ok := o.(T); ok {
			out = append(out, object)
		}
		return nil
	})
	slices.SortFunc(out, func(a, b T) int {
		at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
		return cmp.Or(at.Compare(bt.Time), cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return out, err
}
