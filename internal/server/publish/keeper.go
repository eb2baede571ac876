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
	// writesPerSecond and writeBurst bound how fast one cluster is written to.
	writesPerSecond = 50
	writeBurst      = 100
	// workers write to one cluster at once.
	workers      = 4
	writeTimeout = 10 * time.Second
	// A namespace that was written to is left alone for a while, the longer the
	// more often: so that two who want different roots do not chase each other.
	minRest = 100 * time.Millisecond
	maxRest = time.Minute
)

// keeper keeps the ConfigMaps of one cluster right.
type keeper struct {
	cfg        *RootsConfig
	cluster    mesh.ClusterID
	client     *kube.Client
	roots      atomic.Pointer[string]
	changed    chan struct{} // has one when the roots changed or the system namespace did
	namespaces cache.Store

	mu       sync.Mutex // guards what follows
	queue    workqueue.TypedDelayingInterface[string]
	writing  bool
	failures map[string]error // by namespace; "" is that nothing can be read
	since    time.Time        // of the first of them
}

func newKeeper(cfg *RootsConfig, id mesh.ClusterID, access *rest.Config) (*keeper, error) {
	access = rest.CopyConfig(access)
	access.QPS, access.Burst, access.RateLimiter = writesPerSecond, writeBurst, nil
	client, err := kube.NewClient(access)
	if err != nil {
		return nil, err
	}
	return &keeper{cfg: cfg, cluster: id, client: client, changed: make(chan struct{}, 1), failures: make(map[string]error)}, nil
}

func (k *keeper) setRoots(pem string) {
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

// run keeps the cluster right until ctx ends.
func (k *keeper) run(ctx context.Context) {
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

func (k *keeper) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-k.changed:
	}
}

// wanted reports whether the cluster is one to write to.
func (k *keeper) wanted() bool {
	if k.cluster == k.cfg.Cluster {
		return true
	}
	ns, _, _ := k.namespaces.GetByKey(k.cfg.SystemNamespace)
	system, ok := ns.(*corev1.Namespace)
	return ok && invites(system.Annotations[annotation], k.cfg.Cluster)
}

// write writes until ctx ends or the cluster is no longer one to write to.
func (k *keeper) write(ctx context.Context) {
	var ended sync.WaitGroup
	defer ended.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := workqueue.NewTypedDelayingQueue[string]()
	defer queue.ShutDown()
	k.setWriting(true, queue)
	defer k.setWriting(false, nil)
	k.cfg.Log.Info("keeping the roots of the mesh in a cluster", "cluster", k.cluster)

	store, informer := k.informer("configmaps",
		follow(k.client.ConfigMaps(metav1.NamespaceAll), fields.OneTermEqualSelector(metav1.ObjectNameField, RootConfigMap)),
		&corev1.ConfigMap{}, func(o metav1.Object) { queue.Add(o.GetNamespace()) })
	ended.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return
	}
	w := &writer{keeper: k, queue: queue, configMaps: store, rests: flowcontrol.NewBackOff(minRest, maxRest)}
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

// add has a namespace looked at, if this cluster is written to.
func (k *keeper) add(namespace string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.queue != nil {
		k.queue.Add(namespace)
	}
}

func (k *keeper) setWriting(yes bool, queue workqueue.TypedDelayingInterface[string]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writing, k.queue = yes, queue
	clear(k.failures)
}

// follow is how an informer lists and watches the objects with those fields.
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

// informer follows objects and calls seen for each that came, changed or went.
func (k *keeper) informer(
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

// slim drops what nobody reads.
func slim(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return object, nil
}

// note keeps what fails in a namespace, or that it does no longer. The first
// failure is logged, and that there is none any more.
func (k *keeper) note(ctx context.Context, namespace, what string, err error) {
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
		k.cfg.Log.Warn("the roots of the mesh cannot be kept right in a cluster", "cluster", k.cluster, "namespace", namespace, "error", err)
	case before > 0 && after == 0:
		k.cfg.Log.Info("the roots of the mesh are right again in a cluster", "cluster", k.cluster)
	}
}

func (k *keeper) status() RootsStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := RootsStatus{Cluster: k.cluster, Written: k.writing}
	if len(k.failures) == 0 {
		return st
	}
	st.Since = new(k.since.UTC())
	if err := k.failures[""]; err != nil {
		st.Problem = fmt.Sprintf("the namespaces cannot be looked at: %v", err)
		return st
	}
	names := slices.Sorted(maps.Keys(k.failures))
	st.Problem = fmt.Sprintf("%d namespaces lack the right ConfigMap %s, so new proxies there may not trust the control plane; %s: %v",
		len(names), RootConfigMap, names[0], k.failures[names[0]])
	return st
}
