package publish

import (
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
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
	roots      atomic.Pointer[string]
	changed    chan struct{} // capacity 1: the roots or the system namespace changed
	namespaces cache.Store

	mu       sync.Mutex // guards what follows
	queue    workqueue.TypedDelayingInterface[string]
	writing  bool
	failures map[string]error // by namespace; "" if nothing can be read
	since    time.Time        // of the first failure
}

func newClusterRoots(cfg *RootsConfig, id mesh.ClusterID, access *rest.Config) (*clusterRoots, error) {
	access = rest.CopyConfig(access)
	access.QPS, access.Burst, access.RateLimiter = writesPerSecond, writeBurst, nil
	client, err := kube.NewClient(access)
	if err != nil {
		return nil, err
	}
	return &clusterRoots{cfg: cfg, cluster: id, client: client, changed: make(chan struct{}, 1), failures: make(map[string]error)}, nil
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	store, informer := k.informer("namespaces", follow(k.client.Namespaces(), fields.Everything()), &corev1.Namespace{}, func(o metav1.Object) {
		k.add(o.GetName())
		if o.GetName() == k.cfg.SystemNamespace {
			signal(k.changed)
		}
	})
	k.namespaces = store
	ended.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return
	}
	for ctx.Err() == nil {
		if k.wanted() {
			k.write(ctx)
			continue
		}
		k.wait(ctx)
	}
}

func (k *clusterRoots) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-k.changed:
	}
}

// wanted reports whether this control plane may write to the cluster.
func (k *clusterRoots) wanted() bool {
	if k.cluster == k.cfg.Cluster {
		return true
	}
	ns, _, _ := k.namespaces.GetByKey(k.cfg.SystemNamespace)
	system, ok := ns.(*corev1.Namespace)
	return ok && invites(system.Annotations[annotation], k.cfg.Cluster)
}

// write writes until ctx ends or the cluster no longer allows it.
func (k *clusterRoots) write(ctx context.Context) {
	var ended sync.WaitGroup
	defer ended.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := workqueue.NewTypedDelayingQueue[string]()
	defer queue.ShutDown()
	k.setWriting(true, queue)
	defer k.setWriting(false, nil)
	k.cfg.Log.Info("writing the roots of the mesh to a cluster", "cluster", k.cluster)

	store, informer := k.informer("configmaps",
		follow(k.client.ConfigMaps(metav1.NamespaceAll), fields.OneTermEqualSelector(metav1.ObjectNameField, RootConfigMap)),
		&corev1.ConfigMap{}, func(o metav1.Object) { queue.Add(o.GetNamespace()) })
	ended.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return
	}
	w := &namespaceWriter{clusterRoots: k, queue: queue, configMaps: store, rests: flowcontrol.NewBackOff(minRest, maxRest)}
	for range workers {
		ended.Go(func() { w.run(ctx) })
	}
	for ctx.Err() == nil && k.wanted() {
		for _, name := range k.namespaces.ListKeys() {
			queue.Add(name)
		}
		w.rests.GC()
		k.wait(ctx)
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

func (k *clusterRoots) setWriting(yes bool, queue workqueue.TypedDelayingInterface[string]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writing, k.queue = yes, queue
	clear(k.failures)
}

// follow returns the ListWatch of an informer for the objects with the fields.
func follow[T kube.Object, L kube.List](objects kube.Objects[T, L], which fields.Selector) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = which.String()
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = which.String()
			return objects.Watch(ctx, o)
		},
	}
}

// informer returns an informer that calls seen for each added, changed or deleted
// object.
func (k *clusterRoots) informer(
	resource string, lw *cache.ListWatch, kind runtime.Object, seen func(metav1.Object),
) (cache.Store, cache.Controller) {
	list, follow := lw.ListWithContextFunc, lw.WatchFuncWithContext
	what := "list and watch " + resource
	lw.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		objects, err := list(ctx, o)
		k.note(ctx, "", what, err)
		return objects, err
	}
	lw.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := follow(ctx, o)
		k.note(ctx, "", what, err)
		return w, err
	}
	handle := func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		if o, ok := object.(metav1.Object); ok {
			seen(o)
		}
	}
	return cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw, ObjectType: kind, Transform: slim,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: handle, UpdateFunc: func(_, object any) { handle(object) }, DeleteFunc: handle,
		},
	})
}

// slim drops fields that are never read.
func slim(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return object, nil
}

// note records the failure of a namespace, or its end. It logs the first failure and
// the end of the last one.
func (k *clusterRoots) note(ctx context.Context, namespace, what string, err error) {
	if err != nil && ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	before := len(k.failures)
	if err == nil {
		delete(k.failures, namespace)
	} else {
		if before == 0 {
			k.since = k.cfg.Now()
		}
		k.failures[namespace] = fmt.Errorf("%s: %w", what, err)
	}
	after := len(k.failures)
	k.mu.Unlock()
	switch {
	case before == 0 && after > 0:
		k.cfg.Log.Warn("the roots of the mesh cannot be written to a cluster", "cluster", k.cluster, "namespace", namespace, "error", err)
	case before > 0 && after == 0:
		k.cfg.Log.Info("the roots of the mesh are written to a cluster again", "cluster", k.cluster)
	}
}

func (k *clusterRoots) status() RootsStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := RootsStatus{Cluster: k.cluster, Written: k.writing}
	if len(k.failures) == 0 {
		return st
	}
	st.Since = new(k.since.UTC())
	if err := k.failures[""]; err != nil {
		st.Problem = fmt.Sprintf("the namespaces cannot be watched: %v", err)
		return st
	}
	names := slices.Sorted(maps.Keys(k.failures))
	st.Problem = fmt.Sprintf("%d namespaces lack the right ConfigMap %s, so new proxies there may not trust the control plane; %s: %v",
		len(names), RootConfigMap, names[0], k.failures[names[0]])
	return st
}
