package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	listTimeout = 15 * time.Second
	firstRetry  = 500 * time.Millisecond
	lastRetry   = 4 * time.Second
	watchTime   = 5 * time.Minute // the duration of a watch, before the next one begins
)

// Follower holds the functions that Follow calls, all from one goroutine.
type Follower[T Object, L List] struct {
	// List is called with all objects, first and after each gap in the watch.
	List func(L)
	// Set is called with a new or changed object, Gone with a deleted one.
	Set, Gone func(T)
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
func (o Objects[T, L]) Follow(ctx context.Context, selected metav1.ListOptions, f Follower[T, L]) {
	if f.Jitter == nil {
		f.Jitter = rand.Float64
	}
	wait := firstRetry
	for lost := false; ; wait = min(2*wait, lastRetry) {
		err := o.followOnce(ctx, selected, &f, func() {
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

// followOnce lists the objects and follows changes until the watch ends. It calls
// watching when the watch has begun, and heard with each change.
func (o Objects[T, L]) followOnce(ctx context.Context, selected metav1.ListOptions, f *Follower[T, L], watching, heard func()) error {
	listing, cancel := context.WithTimeout(ctx, listTimeout)
	list, err := o.List(listing, selected)
	cancel()
	if err != nil {
		return fmt.Errorf("list %s: %w", o.resource, err)
	}
	f.List(list)
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
				f.Gone(object)
			} else {
				f.Set(object)
			}
		case *metav1.Status:
			return fmt.Errorf("watch %s: %w", o.resource, apierrors.FromObject(object))
		}
	}
	return nil
}
