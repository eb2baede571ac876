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
	watchTime   = 5 * time.Minute // then the API server ends a watch, and another begins
)

// Follower is told of objects, by one goroutine.
type Follower[T Object, L List] struct {
	// List is told of all that there are, at first and after each gap.
	List func(L)
	// Set is told of one that is new or changed, Gone of one that is deleted.
	Set, Gone func(T)
	// Lost is told once why they cannot be followed, Back that they are again.
	Lost func(error)
	Back func()
	// Jitter spreads the requests of many clients: a random number from 0 to 1;
	// default rand.Float64.
	Jitter func() float64
}

// Follow tells of the objects that the options select, until ctx ends. An API
// server that cannot be asked is asked again for as long, after waits that double
// until a watch has shown something.
func (o Objects[T, L]) Follow(ctx context.Context, selected metav1.ListOptions, f Follower[T, L]) {
	if f.Jitter == nil {
		f.Jitter = rand.Float64
	}
	retry := time.NewTimer(0)
	defer retry.Stop()
	<-retry.C
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
		if err != nil && !lost { // without one it ended in good order, as watches do
			lost = true
			f.Lost(err)
		}
		retry.Reset(time.Duration(float64(wait) * (0.5 + f.Jitter()/2)))
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
	}
}

// followOnce lists the objects and tells of changes until the watch ends.
// watching is called when the API server has begun the watch, heard with each
// change.
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
