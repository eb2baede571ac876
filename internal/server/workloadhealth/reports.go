// Package workloadhealth keeps what proxies say of the health of workloads that Kubernetes
// does not run: the registry is told at once, and the status of the WorkloadEntry
// in the cluster's API, from which the other control planes and the next one of
// this place know it. A workload whose proxy is gone keeps its health for a while,
// in which the proxy may come back, here or elsewhere.
//
// Reports is guarded by one lock; Run owns all that is under way.
package workloadhealth

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
)

const (
	// Grace is how long the last word of a proxy counts after it is gone.
	Grace = 10 * time.Second
	// maxEntries bounds how many workloads are kept.
	maxEntries = 100_000
	// maxWriting is how many writes are under way at once in one cluster: others do
	// not wait for an API server that hangs.
	maxWriting = 16
	// restTime is how long an object is left alone after it was written, so that a
	// workload that wavers does not cost an API server more.
	restTime = time.Second
	// firstRetry and lastRetry bound the wait after a write that failed.
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Results of writes, for Config.Written.
const (
	Updated = "updated"
	Failed  = "error"
)

// Config says whom Reports tells. All fields are needed.
type Config struct {
	// Set tells the registry what a proxy of that service account says of the
	// WorkloadEntry that it names; Unknown takes it back. It must not block.
	Set func(entry snapshot.PodKey, account string, is snapshot.Condition)
	// Written counts the writes of a cluster by result.
	Written func(mesh.ClusterID, string)
	Log     *slog.Logger
	Now     func() time.Time
}

// Reports implements xds.Health.
type Reports struct {
	cfg  Config
	wake chan struct{} // capacity 1: something changed

	mu      sync.Mutex
	apis    map[mesh.ClusterID]*entryAPI
	entries map[workloadKey]*workload
	streams map[string]workloadKey
	// look are the entries that have something to do now or later.
	look    map[workloadKey]*workload
	writing map[mesh.ClusterID]int
}

// claim is a WorkloadEntry and the service account of a proxy that names it. What
// others say of the same entry is kept apart: who is right the entry says.
type workloadKey struct {
	entry   snapshot.PodKey
	account string
}

// entry is what proxies of one account say of one workload.
type workload struct {
	streams map[string]struct{}
	problem string // empty when it is healthy
	// reported is when a proxy spoke last, gone when the last stream ended, zero
	// while there is one.
	reported, gone time.Time
	logged         time.Time // when a report was last told of at the usual level
	// told is what the registry knows of it, toldAt since when. Unknown with all
	// streams gone leaves only the API server to tell.
	known   snapshot.Condition
	knownAt time.Time
	// dirty says that the object is not known to say so, due when to write it.
	dirty bool
	due   time.Time
	retry time.Duration
	busy  bool
	// wrote is the condition that was written last, nil when there was none.
	wrote *condition
	fault string // of the last write, as it was logged
}

// New makes reports of nothing; Run makes them work.
func New(cfg Config) *Reports {
	return &Reports{
		cfg: cfg, wake: make(chan struct{}, 1), apis: make(map[mesh.ClusterID]*entryAPI),
		entries: make(map[workloadKey]*workload), streams: make(map[string]workloadKey), look: make(map[workloadKey]*workload),
		writing: make(map[mesh.ClusterID]int),
	}
}

// SetCluster has the objects of the cluster be written with that access.
func (r *Reports) SetCluster(id mesh.ClusterID, access *rest.Config) error {
	made, err := newAPI(access)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", id, err)
	}
	r.mu.Lock()
	old := r.apis[id]
	r.apis[id] = made
	for c, e := range r.entries {
		if c.entry.Cluster == id { // the cluster may be another one now
			e.dirty, e.due, e.retry = true, time.Time{}, 0
			r.look[c] = e
		}
	}
	r.mu.Unlock()
	old.close()
	r.signal()
	return nil
}

// RemoveCluster has nothing more be written to the cluster.
func (r *Reports) RemoveCluster(id mesh.ClusterID) {
	r.mu.Lock()
	old := r.apis[id]
	delete(r.apis, id)
	r.mu.Unlock()
	old.close()
}

// Report implements xds.Health. Proxies that name no WorkloadEntry are of pods,
// whose health Kubernetes knows; those of which the cluster is not proved are of
// none.
func (r *Reports) Report(stream string, who mesh.Caller, n xdsgen.Node, problem string) {
	if n.WorkloadEntry == "" || who.Cluster == "" {
		return
	}
	id := who.Identity
	c := workloadKey{snapshot.PodKey{Cluster: who.Cluster, Namespace: id.Namespace, Name: n.WorkloadEntry}, id.ServiceAccount}
	tells, loud := r.record(stream, c, problem)
	if !tells {
		return
	}
	log := r.cfg.Log.Debug
	if loud {
		log = r.cfg.Log.Info
	}
	log("a workload reported its health", "workload_entry", c.entry.String(),
		"identity", id.String(), "healthy", problem == "", "problem", problem)
	r.signal()
}

// note enters a report and says whether it tells something new, and how loud to
// say so: one that wavers does not fill the log.
func (r *Reports) record(stream string, c workloadKey, problem string) (tells, loud bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[c]
	if e == nil {
		if len(r.entries) >= maxEntries {
			return false, false
		}
		e = &workload{streams: make(map[string]struct{})}
		r.entries[c] = e
	}
	_, known := e.streams[stream]
	is := e.problem == problem
	e.streams[stream], r.streams[stream] = struct{}{}, c
	now := r.cfg.Now()
	e.problem, e.reported, e.gone = problem, now, time.Time{}
	if known && is {
		return false, false
	}
	if loud = now.Sub(e.logged) >= restTime; loud {
		e.logged = now
	}
	// A new stream is written even if it says the same: the object may know
	// something else from another control plane, which takes it back later.
	e.dirty, e.retry = true, 0
	r.look[c] = e
	r.updateRegistry(c, e, now)
	return true, loud
}

// tell has the registry know what is said now, at most once in a while: each change
// may reach every proxy of the mesh.
func (r *Reports) updateRegistry(c workloadKey, e *workload, now time.Time) {
	is := conditionOf(e.problem)
	if e.known == is || now.Sub(e.knownAt) < restTime {
		return
	}
	e.known, e.knownAt = is, now
	r.cfg.Set(c.entry, c.account, is)
}

func conditionOf(problem string) snapshot.Condition {
	if problem == "" {
		return snapshot.True
	}
	return snapshot.False
}

// Gone implements xds.Health.
func (r *Reports) Gone(stream string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, known := r.streams[stream]
	delete(r.streams, stream)
	if e := r.entries[c]; known && e != nil {
		if delete(e.streams, stream); len(e.streams) == 0 {
			e.gone = r.cfg.Now()
			r.look[c] = e
		}
	}
}

func (r *Reports) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run writes what is due, and forgets workloads whose proxies stay away, until the
// context ends.
func (r *Reports) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	var writes sync.WaitGroup
	defer writes.Wait()
	for {
		jobs, lapsed := r.due()
		for _, c := range lapsed {
			r.cfg.Log.Info("the proxy of a workload is gone: its health is no longer known", "workload_entry", c.entry.String())
		}
		for _, j := range jobs {
			writes.Go(func() { r.write(ctx, j) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-tick.C:
		}
	}
}

// job is one write: a condition to say, or one to take back.
type entryWrite struct {
	workloadKey
	api         *entryAPI
	entry       *workload
	set, remove *condition
}

// due returns the writes to begin now and the claims whose grace period has just
// ended, which the registry forgets at once.
func (r *Reports) due() (jobs []entryWrite, lapsed []workloadKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.cfg.Now()
	for c, e := range r.look {
		cluster := c.entry.Cluster
		api := r.apis[cluster]
		past := !e.gone.IsZero() && now.Sub(e.gone) >= Grace
		switch {
		case !past:
			r.updateRegistry(c, e, now)
		case e.known != snapshot.Unknown:
			e.known, e.knownAt = snapshot.Unknown, now
			r.cfg.Set(c.entry, c.account, snapshot.Unknown)
			lapsed = append(lapsed, c)
		}
		write := api != nil && (past && e.wrote != nil || !past && e.dirty)
		switch {
		case e.busy, write && (r.writing[cluster] >= maxWriting || now.Before(e.due)):
			continue
		case write:
			j := entryWrite{workloadKey: c, api: api, entry: e}
			if past {
				j.remove = e.wrote
			} else {
				e.dirty, j.set = false, newCondition(e.problem, e.reported)
			}
			e.busy = true
			r.writing[cluster]++
			jobs = append(jobs, j)
		case past:
			delete(r.entries, c)
			delete(r.look, c)
		case e.gone.IsZero() && e.known == conditionOf(e.problem):
			delete(r.look, c)
		}
	}
	return jobs, lapsed
}

// write does one job.
func (r *Reports) write(ctx context.Context, j entryWrite) {
	var wrote *condition
	var err error
	if j.remove != nil {
		err = j.api.removeCondition(ctx, j.workloadKey, j.remove)
	} else {
		wrote, err = j.api.setCondition(ctx, j.workloadKey, *j.set)
	}
	if ctx.Err() != nil {
		return
	}
	if r.finish(j, wrote, err) {
		r.cfg.Log.Warn("the health of a workload cannot be written to its object: other control planes do not know it",
			"workload_entry", j.workloadKey.entry.String(), "error", err)
	}
	switch {
	case err != nil:
		r.cfg.Written(j.workloadKey.entry.Cluster, Failed)
	case wrote != nil, j.remove != nil:
		r.cfg.Written(j.workloadKey.entry.Cluster, Updated)
	}
	r.signal()
}

// wrote notes how a job went, and says whether the error is to be told.
func (r *Reports) finish(j entryWrite, wrote *condition, err error) (tell bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writing[j.workloadKey.entry.Cluster]--; r.writing[j.workloadKey.entry.Cluster] == 0 {
		delete(r.writing, j.workloadKey.entry.Cluster)
	}
	e := j.entry
	r.look[j.workloadKey] = e
	e.busy, e.due = false, r.cfg.Now().Add(restTime)
	if err == nil {
		e.wrote, e.retry, e.fault = wrote, 0, ""
		return false
	}
	e.retry = min(max(2*e.retry, firstRetry), lastRetry)
	e.dirty, e.due = true, e.due.Add(e.retry)
	tell = e.fault != err.Error()
	e.fault = err.Error()
	return tell
}
