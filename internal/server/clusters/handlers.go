package clusters

import (
	"context"
	"slices"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
)

// handlerQueue notifies one handler. It has the current access to each cluster and the
// access that the handler knows, so the backlog is never longer than the number of
// clusters, and no removal is left out.
type handlerQueue struct {
	handler Handler

	mu       sync.Mutex
	now      map[mesh.ClusterID]clusterAccess
	order    []mesh.ClusterID // clusters whose states may differ, in the order of change
	wake     chan struct{}
	notified map[mesh.ClusterID]clusterAccess // owned by run
	lives    uint64
}

// clusterAccess is the access to a cluster. A cluster that comes back after its removal
// has a new life.
type clusterAccess struct {
	life   uint64
	config *rest.Config
}

func newHandlerQueue(h Handler) *handlerQueue {
	return &handlerQueue{
		handler: h, now: make(map[mesh.ClusterID]clusterAccess), notified: make(map[mesh.ClusterID]clusterAccess), wake: make(chan struct{}, 1),
	}
}

// set sets the access to a cluster, nil for a removed cluster or one without an API.
func (l *handlerQueue) set(id mesh.ClusterID, config *rest.Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if config == nil {
		delete(l.now, id)
	} else {
		next, there := l.now[id]
		if !there {
			l.lives++
			next.life = l.lives
		}
		next.config = config
		l.now[id] = next
	}
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
	now := l.now[id]
	l.mu.Unlock()
	last, known := l.notified[id]
	if known && now.life != last.life {
		l.handler.RemoveCluster(id)
		delete(l.notified, id)
	}
	if now != last && now.config != nil {
		l.handler.SetCluster(id, now.config)
		l.notified[id] = now
	}
	return true
}
