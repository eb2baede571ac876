package clusters

import (
	"context"
	"slices"
	"sync"

	"github.com/meshctl/meshctl/internal/mesh"
)

// handlerQueue notifies one handler. It has the current state of each cluster and the
// state that the handler knows, so the backlog is never longer than the number of
// clusters, and no step is left out.
type handlerQueue struct {
	handler Handler

	mu       sync.Mutex
	now      map[mesh.ClusterID]clusterLife
	order    []mesh.ClusterID // clusters whose states may differ, in the order of change
	wake     chan struct{}
	notified map[mesh.ClusterID]clusterLife // owned by run
	nextID   uint64
}

// clusterLife is the life of a cluster between added and deleted, with its access.
type clusterLife struct {
	number  uint64
	access  uint64
	cluster Cluster
}

func newHandlerQueue(h Handler) *handlerQueue {
	return &handlerQueue{
		handler: h, now: make(map[mesh.ClusterID]clusterLife), notified: make(map[mesh.ClusterID]clusterLife), wake: make(chan struct{}, 1),
	}
}

// set sets the state of a cluster. A cluster that comes back after its deletion starts a
// new life.
func (l *handlerQueue) set(c Cluster) {
	l.mu.Lock()
	l.nextID++
	old, there := l.now[c.ID]
	next := clusterLife{number: l.nextID, access: l.nextID, cluster: c}
	if there {
		next.number = old.number
	}
	l.now[c.ID] = next
	l.mark(c.ID)
	l.mu.Unlock()
}

func (l *handlerQueue) remove(id mesh.ClusterID) {
	l.mu.Lock()
	delete(l.now, id)
	l.mark(id)
	l.mu.Unlock()
}

func (l *handlerQueue) mark(id mesh.ClusterID) {
	if !slices.Contains(l.order, id) {
		l.order = append(l.order, id)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *handlerQueue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		for ctx.Err() == nil && l.notifyNext() {
		}
	}
}

// notifyNext notifies the handler of one cluster, and reports whether there may be more.
func (l *handlerQueue) notifyNext() bool {
	l.mu.Lock()
	if len(l.order) == 0 {
		l.mu.Unlock()
		return false
	}
	id := l.order[0]
	l.order = l.order[1:]
	now, there := l.now[id]
	l.mu.Unlock()
	told, known := l.notified[id]
	if known && (!there || now.number != told.number) {
		l.handler.ClusterDeleted(id)
		delete(l.notified, id)
		known = false
	}
	switch {
	case !there:
	case !known:
		l.handler.ClusterAdded(now.cluster)
	case now.access != told.access:
		l.handler.ClusterUpdated(now.cluster)
	}
	if there {
		l.notified[id] = now
	}
	return true
}
