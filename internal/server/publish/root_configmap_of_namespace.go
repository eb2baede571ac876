package publish

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
)

// namespaceWriter writes the ConfigMaps of one cluster.
type namespaceWriter struct {
	*clusterRoots
	queue      workqueue.TypedDelayingInterface[string] // of namespaces to check
	configMaps *byNamespace[*corev1.ConfigMap]
	rests      *flowcontrol.Backoff // pauses after writes, by namespace
}

// run checks the namespaces in the queue until the queue is shut down.
func (w *namespaceWriter) run(ctx context.Context) {
	for {
		namespace, ended := w.queue.Get()
		if ended {
			return
		}
		if ctx.Err() == nil {
			w.look(ctx, namespace)
		}
		w.queue.Done(namespace)
	}
}

// look writes the ConfigMap of a namespace if it is missing or differs.
func (w *namespaceWriter) look(ctx context.Context, namespace string) {
	ns, roots := w.namespaces.get(namespace), w.roots.Load()
	if ns == nil || ns.DeletionTimestamp != nil || ignored(namespace) {
		w.note(ctx, w.failures, namespace, nil)
		w.rests.DeleteEntry(namespace)
		return
	}
	if roots == nil {
		return
	}
	have := w.configMaps.get(namespace)
	if isRight(have, *roots) {
		w.note(ctx, w.failures, namespace, nil)
		return
	}
	// If the write is done already, the watch will report it.
	now := w.rests.Clock.Now()
	if w.rests.IsInBackOffSinceUpdate(namespace, now) {
		w.queue.AddAfter(namespace, w.rests.Get(namespace))
		return
	}
	w.rests.Next(namespace, now)
	if err := w.put(ctx, namespace, have, *roots); err != nil {
		w.note(ctx, w.failures, namespace, fmt.Errorf("write: %w", err))
	}
	w.queue.AddAfter(namespace, w.rests.Get(namespace)) // in case the watch misses it
}

func isRight(have *corev1.ConfigMap, roots string) bool {
	return have != nil && have.Data[RootKey] == roots && have.Labels[configLabel] == "true"
}

// put creates or corrects the ConfigMap. Its other keys and labels stay. Conflicts with
// other writers are not errors.
func (w *namespaceWriter) put(ctx context.Context, namespace string, have *corev1.ConfigMap, roots string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	api := w.client.ConfigMaps(namespace)
	var result string
	var err error
	switch {
	case have == nil:
		result = Created
		made := &corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: RootConfigMap, Labels: map[string]string{configLabel: "true"}},
			Data:       map[string]string{RootKey: roots},
		}
		// Apply needs the right to create only this name. Roles of earlier versions permit only Create.
		if err = w.client.Apply(ctx, made, rootManager); apierrors.IsForbidden(err) {
			_, err = api.Create(ctx, made, metav1.CreateOptions{})
		}
	case have.Immutable != nil && *have.Immutable:
		result = Deleted
		err = api.Delete(ctx, RootConfigMap, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
	default:
		result = Updated
		right := have.DeepCopy()
		if right.Data == nil {
			right.Data = make(map[string]string)
		}
		if right.Labels == nil {
			right.Labels = make(map[string]string)
		}
		right.Data[RootKey], right.Labels[configLabel] = roots, "true"
		delete(right.BinaryData, RootKey)
		_, err = api.Update(ctx, right, metav1.UpdateOptions{})
	}
	switch {
	case err == nil:
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err),
		apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
		return nil // the namespace goes, or another was faster, which is about to be told
	default:
		w.count(Failed)
		return fmt.Errorf("ConfigMap %s/%s: %w", namespace, RootConfigMap, err)
	}
	w.count(result)
	w.cfg.Log.Debug("roots of the mesh written", "cluster", w.cluster, "namespace", namespace, "configmap", RootConfigMap, "was", result)
	return nil
}

func (w *namespaceWriter) count(result string) {
	if w.cfg.Written != nil {
		w.cfg.Written(w.cluster, result)
	}
}
