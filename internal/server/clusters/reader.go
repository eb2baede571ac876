package clusters

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/backoff"
	"github.com/meshctl/meshctl/internal/mesh"
)

// clusterReader reads one cluster with one access until it is stopped. It replaces a
// source that fails by a new one after a pause.
type clusterReader struct {
	id           mesh.ClusterID
	registration *registration // owned by the manager
	feed         *feed
	started      time.Time
	stop         context.CancelFunc

	source  atomic.Pointer[Source]
	failure atomic.Pointer[failure]
}

// end stops the reader. It delivers nothing more.
func (r *clusterReader) end() {
	r.feed.close()
	r.stop()
}

// failure is the error of a source.
type failure struct {
	since time.Time
	err   error
}

// report returns the state of the reader.
func (r *clusterReader) report() Report {
	if f := r.failure.Load(); f != nil {
		return Report{LostSince: f.since, Cause: "source", Reason: f.err.Error()}
	}
	if s := r.source.Load(); s != nil {
		return (*s).Report()
	}
	return Report{}
}

// run reads until ctx ends. failed gets each error and returns whether to try again.
func (r *clusterReader) run(ctx context.Context, access *Access, cfg *Config, failed func(error) bool) {
	defer r.feed.close()
	if access.Close != nil {
		defer access.Close()
	}
	failures := 0
	for {
		source := access.NewSource()
		r.feed.hold()
		r.source.Store(&source)
		err := source.Run(ctx, &attempt{feed: r.feed, began: func() { r.failure.Store(nil) }})
		if ctx.Err() != nil || err == nil {
			return
		}
		if f := r.failure.Load(); f != nil {
			r.failure.Store(&failure{f.since, err})
		} else {
			r.failure.Store(&failure{cfg.Now(), err})
			failures = 0
		}
		if !failed(err) {
			return
		}
		failures++
		select {
		case <-time.After(backoff.Wait(failures, cfg.timing.retry, cfg.timing.longest, cfg.Jitter)):
		case <-ctx.Done():
			return
		}
	}
}

// attempt is the sink of one source. Its Synced ends the failure of the source before.
type attempt struct {
	*feed
	began func()
}

// Synced implements snapshot.Sink.
func (a *attempt) Synced(id mesh.ClusterID) {
	a.began()
	a.feed.Synced(id)
}
