package publish

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// writesPerSecond and writeBurst limit the requests to one cluster.
	writesPerSecond = 50
	writeBurst      = 100
	// workers is the number of concurrent writers for one cluster.
	workers      = 4
	writeTimeout = 10 * time.Second
	// minRest and maxRest bound the pause after a write to a namespace. The pause
	// doubles each time, so that two control planes with different roots do not
	// overwrite each other all the time.
	minRest = 100 * time.Millisecond
	maxRest = time.Minute
)

// clusterRoots maintains the ConfigMaps of one cluster.
type clusterRoots struct {
	cfg        *RootsConfig
	cluster    mesh.ClusterID
	client     *kube.Client
	stop       context.CancelFunc // ends run
	roots      atomic.Pointer[string]
	changed    chan struct{} // capacity 1: the roots or the system namespace changed
	namespaces *byNamespace[*corev1.Namespace]

	mu       sync.Mutex // guards what follows
	queue    workqueue.TypedDelayingInterface[string]
	unread   map[string]error // by resource that cannot be watched
	failures map[string]error // by namespace that cannot be written
	since    time.Time        // of the first error in the maps
}

func newClusterRoots(cfg *RootsConfig, id mesh.ClusterID, client *kube.Client) *clusterRoots {
	return &clusterRoots{
		cfg: cfg, cluster: id, client: client, changed: make(chan struct{}, 1),
		namespaces: newByNamespace[*corev1.Namespace](), unread: make(map[string]error), failures: make(map[string]error),
	}
}

func (k *clusterRoots) setRoots(pem string) {
	if old := k.roots.Swap(&pem); old == nil || *old != pem {
		signal(k.changed)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run maintains the ConfigMaps until ctx ends.
func (k *clusterRoots) run(ctx context.Context) {
	var ended sync.WaitGroup
	defer ended.Wait()
	ended.Go(func() {
		follow(ctx, k, "namespaces", k.client.Namespaces(), fields.Everything(), k.namespaces, func(name string) {
			k.add(name)
			if name == k.cfg.SystemNamespace {
				signal(k.changed)
			}
		})
	})
	wait(ctx, k.namespaces.listed)
	for ctx.Err() == nil {
		if k.wanted() {
			k.write(ctx)
			continue
		}
		wait(ctx, k.changed)
	}
}

// wait waits for an event or the end of ctx.
func wait(ctx context.Context, event <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-event:
	}
}

// wanted reports whether this control plane may write to the cluster.
func (k *clusterRoots) wanted() bool {
	if k.cluster == k.cfg.Cluster {
		return true
	}
	system := k.namespaces.get(k.cfg.SystemNamespace)
	return system != nil && invites(system.Annotations[mesh.AnnotationControlPlaneClusters], k.cfg.Cluster)
}

// write writes until ctx ends or the cluster no longer allows it.
func (k *clusterRoots) write(ctx context.Context) {
	queue := workqueue.NewTypedDelayingQueue[string]()
	k.setQueue(queue)
	defer k.setQueue(nil)
	var ended sync.WaitGroup
	defer ended.Wait()
	defer queue.ShutDown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k.cfg.Log.Info("writing the roots of the mesh to a cluster", "cluster", k.cluster)

	w := &namespaceWriter{
		clusterRoots: k, queue: queue, configMaps: newByNamespace[*corev1.ConfigMap](), rests: flowcontrol.NewBackOff(minRest, maxRest),
	}
	ended.Go(func() {
		named := fields.OneTermEqualSelector(metav1.ObjectNameField, RootConfigMap)
		follow(ctx, k, "configmaps", k.client.ConfigMaps(metav1.NamespaceAll), named, w.configMaps, func(namespace string) { queue.Add(namespace) })
	})
	wait(ctx, w.configMaps.listed)
	for range workers {
		ended.Go(func() { w.run(ctx) })
	}
	for ctx.Err() == nil && k.wanted() {
		k.namespaces.mu.Lock()
		for name := range k.namespaces.objects {
			queue.Add(name)
		}
		k.namespaces.mu.Unlock()
		w.rests.GC()
		wait(ctx, k.changed)
	}
}

// add queues a namespace for a check if write is running.
func (k *clusterRoots) add(namespace string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.queue != nil {
		k.queue.Add(namespace)
	}
}

// setQueue sets the queue of write, nil when write has ended.
func (k *clusterRoots) setQueue(queue workqueue.TypedDelayingInterface[string]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.queue = queue
	clear(k.failures)
	delete(k.unread, "configmaps")
}

// byNamespace holds the Namespaces of a cluster, or one object of each, as last seen.
type byNamespace[T kube.Object] struct {
	listed chan struct{} // closed after the first list

	mu      sync.Mutex
	objects map[string]T
}

func newByNamespace[T kube.Object]() *byNamespace[T] {
	return &byNamespace[T]{listed: make(chan struct{}), objects: make(map[string]T)}
}

// get returns the object of a namespace, nil if there is none.
func (s *byNamespace[T]) get(namespace string) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[namespace]
}

// follow keeps the objects in a map until ctx ends, and calls seen with the namespace of
// each added, changed or deleted object.
func follow[T kube.Object, L kube.List](
	ctx context.Context, k *clusterRoots, resource string, objects kube.Objects[T, L], selected fields.Selector, to *byNamespace[T], seen func(namespace string),
) {
	// Version 0 lets the API server answer a list from its cache.
	objects.Follow(ctx, metav1.ListOptions{FieldSelector: selected.String(), ResourceVersion: "0"}, kube.Follower[T]{
		Set: func(o T) {
			o.SetManagedFields(nil)                            // they are large and never read
			namespace := cmp.Or(o.GetNamespace(), o.GetName()) // a Namespace is in none
			to.mu.Lock()
			to.objects[namespace] = o
			to.mu.Unlock()
			seen(namespace)
		},
		Gone: func(namespace, name string) {
			namespace = cmp.Or(namespace, name)
			to.mu.Lock()
			delete(to.objects, namespace)
			to.mu.Unlock()
			seen(namespace)
		},
		Listed: sync.OnceFunc(func() { close(to.listed) }),
		Lost:   func(err error) { k.note(ctx, k.unread, resource, err) },
		Back:   func() { k.note(ctx, k.unread, resource, nil) },
	})
}

// note records the error of a namespace or resource in one of the maps, or its end. It
// logs the first error and the end of the last one.
func (k *clusterRoots) note(ctx context.Context, in map[string]error, name string, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	before := len(k.failures) + len(k.unread)
	if err == nil {
		delete(in, name)
	} else {
		if before == 0 {
			k.since = k.cfg.Now()
		}
		in[name] = err
	}
	after := len(k.failures) + len(k.unread)
	k.mu.Unlock()
	switch {
	case before == 0 && after > 0:
		k.cfg.Log.Warn("the roots of the mesh cannot be written to a cluster", "cluster", k.cluster, "error", err)
	case before > 0 && after == 0:
		k.cfg.Log.Info("the roots of the mesh are written to a cluster again", "cluster", k.cluster)
	}
}

func (k *clusterRoots) status() RootsStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := RootsStatus{Cluster: k.cluster, Written: k.queue != nil}
	unread, names := slices.Sorted(maps.Keys(k.unread)), slices.Sorted(maps.Keys(k.failures))
	switch {
	case len(unread) > 0:
		st.Problem = fmt.Sprintf("the namespaces cannot be watched: %v", k.unread[unread[0]])
	case len(names) > 0:
		st.Problem = fmt.Sprintf("%d namespaces lack the right ConfigMap %s, so new proxies there may not trust the control plane; %s: %v",
			len(names), RootConfigMap, names[0], k.failures[names[0]])
	default:
		return st
	}
	st.Since = new(k.since.UTC())
	return st
}
