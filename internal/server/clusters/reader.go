package clusters

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// reading reads one cluster with one access until it is stopped: a source that
// gives up is replaced by a new one, after a while.
type clusterReader struct {
	id           mesh.ClusterID
	registration *registration // owned by the manager
	feed         *feed
	started      time.Time
	stop         context.CancelFunc

	source  atomic.Pointer[Source]
	failure atomic.Pointer[failure]
}

// end stops the reading; nothing of it comes any more.
func (r *clusterReader) end() {
	r.feed.close()
	r.stop()
}

// failure is why a source gave up.
type failure struct {
	since time.Time
	err   error
}

// report is how the reading goes.
func (r *clusterReader) report() Report {
	if f := r.failure.Load(); f != nil {
		return Report{LostSince: f.since, Cause: "source", Reason: f.err.Error()}
	}
	if s := r.source.Load(); s != nil {
		return (*s).Report()
	}
	return Report{}
}

// run reads until ctx ends. failed is told of each error and says whether to
// try again.
func (r *clusterReader) run(ctx context.Context, access *Access, cfg *Config, failed func(error) bool) {
	defer r.feed.close()
	if access.Close != nil {
		defer access.Close()
	}
	wait := cfg.timing.retry
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
			wait = cfg.timing.retry
		}
		if !failed(err) {
			return
		}
		timer := time.NewTimer(wait + time.Duration(cfg.Jitter()*float64(wait)/4))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		wait = min(2*wait, cfg.timing.longest)
	}
}

// attempt is the sink of one source: what it hands over in the end shows that
// the failure before is over.
type attempt struct {
	*feed
	began func()
}

// Synced implements snapshot.Sink.
func (a *attempt) Synced(id mesh.ClusterID) {
	a.began()
	a.feed.Synced(id)
}
