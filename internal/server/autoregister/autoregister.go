// Package autoregister writes the WorkloadEntries of machines that join with the name of a
// WorkloadGroup. An entry is made when a proxy connects. It is deleted when the proxy has been
// disconnected for a grace period, as the proxy may connect again, here or elsewhere. Names,
// labels and annotations are Istio's, so that either control plane takes over from the other.
//
// One lock guards Registrations; Run owns the writes in progress.
package autoregister

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

const (
	// Grace is the time after which the entry of a disconnected proxy is deleted.
	Grace = 10 * time.Second
	// maxMachines bounds the number of machines.
	maxMachines = 100_000
	// maxWriting bounds the concurrent writes to one cluster.
	maxWriting = 16
	// writeTime bounds one write.
	writeTime = 10 * time.Second
	// firstRetry and lastRetry bound the wait after a write that failed.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// maxConflicts bounds the attempts of a write that meets another one.
	maxConflicts = 5
	// maxAnswer bounds a response of an API server, in bytes.
	maxAnswer = 8 << 20
)

// Results of writes, for Config.Written.
const (
	Registered = "registered"
	Deleted    = "deleted"
	Failed     = "error"
)

// Config configures Registrations. All fields are required.
type Config struct {
	// Controller is the name of this control plane, unique in the mesh.
	Controller string
	// MaxAge is the longest time that a proxy stays connected without a new stream, and so
	// without a new write of its entry. 0 means that there is no limit.
	MaxAge time.Duration
	// Written counts the writes to a cluster by result.
	Written func(mesh.ClusterID, string)
	Log     *slog.Logger
	Now     func() time.Time
}

// Registrations are the machines that are connected to this control plane, or were lately.
type Registrations struct {
	cfg  Config
	wake chan struct{} // capacity 1: something changed

	mu       sync.Mutex
	apis     map[mesh.ClusterID]*kube.Client
	machines map[machineKey]*machine
	// look has the machines with work to do, now or later.
	look    map[machineKey]*machine
	writing map[mesh.ClusterID]int
}

// stage is the state of an entry, as this control plane wrote it.
type stage int

const (
	unwritten stage = iota
	connected
	disconnected
	deleted
)

// machineKey is a WorkloadEntry and the service account of a proxy that names it. A proxy with
// another account neither prevents nor ends the registration.
type machineKey struct {
	entry   snapshot.PodKey
	account string
}

// machine is a proxy and the state of its entry.
type machine struct {
	streams int
	joined  joined
	gone    time.Time // of the end of the last stream, zero while there is one
	wrote   stage
	busy    bool
	due     time.Time // of the next attempt
	retry   time.Duration
	fault   string // error of the last write, as logged
}

// joined holds the identity and the node of a proxy at the start of its latest stream.
type joined struct {
	entry snapshot.PodKey
	who   mesh.Caller
	node  proxy.Node
	at    time.Time
}

// New returns Registrations without machines. Run makes them work.
func New(cfg Config) *Registrations {
	return &Registrations{
		cfg: cfg, wake: make(chan struct{}, 1), apis: make(map[mesh.ClusterID]*kube.Client),
		machines: make(map[machineKey]*machine), look: make(map[machineKey]*machine), writing: make(map[mesh.ClusterID]int),
	}
}

// SetCluster writes the entries of a cluster with the access from now on.
func (r *Registrations) SetCluster(id mesh.ClusterID, access *rest.Config) error {
	made, err := kube.NewBoundedClient(access, maxAnswer) // maxWriting bounds the rate
	if err != nil {
		return fmt.Errorf("cluster %s: %w", id, err)
	}
	r.mu.Lock()
	old := r.apis[id]
	r.apis[id] = made
	for key, m := range r.machines {
		if key.entry.Cluster == id { // the cluster may be another one now
			m.due, m.retry = time.Time{}, 0
			if m.streams > 0 {
				m.wrote = unwritten
			}
			r.look[key] = m
		}
	}
	r.mu.Unlock()
	old.Close()
	r.signal()
	return nil
}

// RemoveCluster stops writing to a cluster.
func (r *Registrations) RemoveCluster(id mesh.ClusterID) {
	r.mu.Lock()
	old := r.apis[id]
	delete(r.apis, id)
	r.mu.Unlock()
	old.Close()
}

// Connected registers the proxy of a new stream if it names a WorkloadGroup and its cluster is
// proved. It does not block. Its caller calls gone at the end of the stream.
func (r *Registrations) Connected(who mesh.Caller, n proxy.Node) (gone func()) {
	if n.WorkloadGroup == "" || who.Cluster == "" {
		return func() {}
	}
	entry := snapshot.PodKey{Cluster: who.Cluster, Namespace: who.Identity.Namespace, Name: n.WorkloadEntry}
	key := machineKey{entry, who.Identity.ServiceAccount}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.machines[key]
	if m == nil {
		if len(r.machines) >= maxMachines {
			return func() {}
		}
		m = &machine{}
		r.machines[key] = m
	}
	m.streams++
	m.joined, m.gone = joined{entry, who, n, r.cfg.Now()}, time.Time{}
	// A new stream is written even if the proxy has another one, so that no control plane
	// takes the entry for abandoned.
	m.wrote, m.due, m.retry = unwritten, time.Time{}, 0
	r.look[key] = m
	r.signal()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if m.streams--; m.streams == 0 {
			m.gone, m.due, m.retry = r.cfg.Now(), time.Time{}, 0
			r.look[key] = m
			r.signal()
		}
	}
}

func (r *Registrations) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run writes entries until ctx ends.
func (r *Registrations) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	var writes sync.WaitGroup
	defer writes.Wait()
	for {
		for _, w := range r.next() {
			writes.Go(func() { r.write(ctx, w) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-tick.C:
		}
	}
}

// entryWrite is one write, which brings the entry of a machine to a stage.
type entryWrite struct {
	joined
	machine *machine
	api     *kube.Client
	to      stage
	gone    time.Time
}

// next returns the writes to start now, and forgets machines without an entry.
func (r *Registrations) next() (out []entryWrite) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.cfg.Now()
	for key, m := range r.look {
		to := m.next(now)
		switch {
		case m.busy:
		case to == deleted && m.wrote != disconnected:
			delete(r.machines, key)
			delete(r.look, key)
		case to == connected && m.wrote == connected:
			delete(r.look, key)
		case r.apis[key.entry.Cluster] == nil:
			if m.fault == "" && now.Sub(m.joined.at) >= Grace { // else the cluster may be about to be found
				m.fault = "no Kubernetes API"
				r.cfg.Log.Warn("a machine is not registered: its cluster has no Kubernetes API here", "workload_entry", key.entry.String(),
					"group", m.joined.node.WorkloadGroup)
			}
		case to != m.wrote && r.writing[key.entry.Cluster] < maxWriting && !now.Before(m.due):
			m.busy = true
			r.writing[key.entry.Cluster]++
			out = append(out, entryWrite{m.joined, m, r.apis[key.entry.Cluster], to, m.gone})
		}
	}
	return out
}

// next returns the stage that the entry should reach by the next write.
func (m *machine) next(now time.Time) stage {
	switch {
	case m.streams > 0:
		return connected
	case m.wrote == connected:
		return disconnected
	case m.wrote != disconnected || now.Sub(m.gone) >= Grace:
		return deleted
	}
	return m.wrote
}

// write does one write.
func (r *Registrations) write(ctx context.Context, w entryWrite) {
	in, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	do := r.deregister
	switch w.to {
	case connected:
		do = r.register
	case disconnected:
		do = r.markDisconnected
	}
	err := do(in, w)
	for range maxConflicts {
		if !apierrors.IsConflict(err) { // as with a writer of the entry's health
			break
		}
		err = do(in, w)
	}
	if ctx.Err() != nil {
		return
	}
	log := r.finish(w, err)
	name := w.entry.String()
	switch {
	case log && err != nil:
		r.cfg.Log.Warn("the WorkloadEntry of a machine cannot be written", "workload_entry", name, "group", w.node.WorkloadGroup,
			"identity", w.who.Identity.String(), "error", err)
	case err == nil && w.to == connected:
		r.cfg.Log.Info("registered a machine", "workload_entry", name, "group", w.node.WorkloadGroup, "identity", w.who.Identity.String())
	case err == nil && w.to == deleted:
		r.cfg.Log.Info("the proxy of a machine is gone: its registration ended", "workload_entry", name)
	}
	switch {
	case err != nil:
		r.cfg.Written(w.entry.Cluster, Failed)
	case w.to == connected:
		r.cfg.Written(w.entry.Cluster, Registered)
	case w.to == deleted:
		r.cfg.Written(w.entry.Cluster, Deleted)
	}
	r.signal()
}

// finish records the result of a write, and returns whether to log the error.
func (r *Registrations) finish(w entryWrite, err error) (log bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writing[w.entry.Cluster]--; r.writing[w.entry.Cluster] == 0 {
		delete(r.writing, w.entry.Cluster)
	}
	m := w.machine
	m.busy = false
	if err == nil {
		m.retry, m.fault = 0, ""
		if m.joined.at.Equal(w.at) { // else a new stream waits for its write
			m.wrote = w.to
		}
		return true
	}
	m.retry = min(max(2*m.retry, firstRetry), lastRetry)
	m.due = r.cfg.Now().Add(m.retry)
	log = m.fault != err.Error()
	m.fault = err.Error()
	return log
}
