package clusters

import (
	"context"
	"slices"
	"sync"

	"github.com/meshctl/meshctl/internal/mesh"
)

// listener tells one handler. It keeps what each cluster is and what the
// handler was told; the difference is what is still to be told. So it is never
// behind by more than the number of clusters, and leaves no step out.
type handlerQueue struct {
	handler Handler

	mu       sync.Mutex
	now      map[mesh.ClusterID]clusterLife
	order    []mesh.ClusterID // those that may differ, first come first told
	wake     chan struct{}
	notified map[mesh.ClusterID]clusterLife // owned by run
	nextID   uint64
}

// life is one life of a cluster between added and deleted, and its access.
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

// set says what a cluster is now; a cluster that comes back after it was
// deleted begins a new life.
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

// tell tells of one cluster and reports whether there may be more.
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
