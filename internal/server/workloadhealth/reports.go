// Package workloadhealth handles the health of workloads outside of Kubernetes, as
// their proxies report it. It updates the registry at once, and writes the health to
// the status of the WorkloadEntry in the cluster's API, where other control planes and
// restarted ones read it. A workload keeps its health for a grace period after its
// proxy has disconnected, as the proxy may connect again, here or elsewhere.
//
// One lock guards Reports; Run owns the writes in progress.
package workloadhealth

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

const (
	// Grace is how long the last report of a proxy counts after it has disconnected.
	Grace = 10 * time.Second
	// maxEntries bounds the number of workloads.
	maxEntries = 100_000
	// maxWriting bounds the concurrent writes to one cluster, so that other clusters
	// do not wait for an API server that hangs.
	maxWriting = 16
	// restTime is the shortest interval between two writes of an object, so that a
	// flapping workload costs an API server little.
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

// Config configures Reports. All fields are required.
type Config struct {
	// Set sets the health of a WorkloadEntry in the registry, as reported by proxies
	// of the service account. Unknown removes it. Set must not block.
	Set func(entry snapshot.PodKey, account string, is snapshot.Condition)
	// Written counts the writes to a cluster by result.
	Written func(mesh.ClusterID, string)
	Log     *slog.Logger
	Now     func() time.Time
}

// Reports implements xds.Health.
type Reports struct {
	cfg  Config
	wake chan struct{} // capacity 1: something changed

	mu      sync.Mutex
	apis    map[mesh.ClusterID]*kube.Client
	entries map[workloadKey]*workload
	streams map[string]workloadKey
	// look are the entries with work to do, now or later.
	look    map[workloadKey]*workload
	writing map[mesh.ClusterID]int
}

// workloadKey is a WorkloadEntry and the service account of a proxy that names it. The
// reports of different accounts are separate: the entry names the right account.
type workloadKey struct {
	entry   snapshot.PodKey
	account string
}

// workload is the health of a workload as the proxies of one account report it.
type workload struct {
	streams map[string]struct{}
	problem string // empty if healthy
	// reported is the time of the last report, gone the time at which the last stream
	// ended, zero while there is one.
	reported, gone time.Time
	logged         time.Time // of the last report logged at level info
	// known is the health in the registry, set at knownAt. If it is Unknown and all
	// streams are gone, only the object is left to update.
	known   snapshot.Condition
	knownAt time.Time
	// dirty means that the object must be written, at due at the earliest.
	dirty bool
	due   time.Time
	retry time.Duration
	busy  bool
	// wrote is the last written condition, nil if there is none.
	wrote *condition
	fault string // error of the last write, as logged
}

// New returns Reports without workloads. Run makes them work.
func New(cfg Config) *Reports {
	return &Reports{
		cfg: cfg, wake: make(chan struct{}, 1), apis: make(map[mesh.ClusterID]*kube.Client),
		entries: make(map[workloadKey]*workload), streams: make(map[string]workloadKey), look: make(map[workloadKey]*workload),
		writing: make(map[mesh.ClusterID]int),
	}
}

// SetCluster writes the objects of a cluster with the access from now on.
func (r *Reports) SetCluster(id mesh.ClusterID, access *rest.Config) error {
	made, err := kube.NewBoundedClient(access, maxAnswer) // maxWriting bounds the rate
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
	old.Close()
	r.signal()
	return nil
}

// RemoveCluster stops writing to a cluster.
func (r *Reports) RemoveCluster(id mesh.ClusterID) {
	r.mu.Lock()
	old := r.apis[id]
	delete(r.apis, id)
	r.mu.Unlock()
	old.Close()
}

// Report implements xds.Health. It ignores proxies that name no WorkloadEntry, which
// run in pods, and proxies without a proved cluster.
func (r *Reports) Report(stream string, who mesh.Caller, n proxy.Node, problem string) {
	if n.WorkloadEntry == "" || who.Cluster == "" {
		return
	}
	id := who.Identity
	c := workloadKey{snapshot.PodKey{Cluster: who.Cluster, Namespace: id.Namespace, Name: n.WorkloadEntry}, id.ServiceAccount}
	fresh, loud := r.record(stream, c, problem)
	if !fresh {
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

// record records a report. It returns whether the report is new, and whether to log it
// at level info: a flapping workload must not fill the log.
func (r *Reports) record(stream string, c workloadKey, problem string) (fresh, loud bool) {
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
	// The report of a new stream is written even if it is the same, as another
	// control plane may have changed the object.
	e.dirty, e.retry = true, 0
	r.look[c] = e
	r.updateRegistry(c, e, now)
	return true, loud
}

// updateRegistry sets the current health in the registry, at most once in restTime, as
// each change may reach every proxy of the mesh.
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

// Run writes objects and forgets workloads without proxies, until ctx ends.
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

// entryWrite is one write: a condition to set, or one to remove.
type entryWrite struct {
	workloadKey
	api         *kube.Client
	entry       *workload
	set, remove *condition
}

// due returns the writes to start now, and the workloads whose grace period has just
// ended. The registry has forgotten these.
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

// write does one write.
func (r *Reports) write(ctx context.Context, j entryWrite) {
	var wrote *condition
	var err error
	if j.remove != nil {
		err = removeCondition(ctx, j.api, j.workloadKey, j.remove)
	} else {
		wrote, err = setCondition(ctx, j.api, j.workloadKey, *j.set)
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

// finish records the result of a write, and returns whether to log the error.
func (r *Reports) finish(j entryWrite, wrote *condition, err error) (log bool) {
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
	log = e.fault != err.Error()
	e.fault = err.Error()
	return log
}
