package kube

import (
	stdjson "encoding/json"
	"fmt"
	"maps"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// message is an object of the API in protobuf.
type message interface {
	Unmarshal([]byte) error
	GetObjectMeta() metav1.Object
}

// readPlan describes how the objects of a resource are requested and decoded.
type readPlan struct {
	make     func() message // nil for JSON
	keep     fieldSet
	selector string // field selector
	page     int    // objects per page
}

// pageSize is the number of objects per page, secretPage the number of objects that may be
// large.
const (
	pageSize   = 500
	secretPage = 50
)

// notCredentials excludes the types of Secrets that proxies do not use, which are most
// Secrets of most clusters.
const notCredentials = "type!=helm.sh/release.v1,type!=" + string(corev1.SecretTypeServiceAccountToken) +
	",type!=" + string(corev1.SecretTypeDockercfg) +
	",type!=" + string(corev1.SecretTypeBasicAuth) + ",type!=" + string(corev1.SecretTypeSSHAuth) +
	",type!=" + string(corev1.SecretTypeBootstrapToken)

func planOf(r *source.Resource, analysis bool) readPlan {
	if r.Kind == snapshot.KindPod && analysis {
		return readPlan{func() message { return &corev1.Pod{} }, analyzedPodFields, "status.phase!=" + string(corev1.PodFailed), pageSize}
	}
	if r.Unread {
		return readPlan{func() message { return &metav1.PartialObjectMetadata{} }, nameFields, "", pageSize}
	}
	switch r.Kind {
	case snapshot.KindReplicaSet:
		return readPlan{func() message { return &appsv1.ReplicaSet{} }, replicaSetFields, "", pageSize}
	case snapshot.KindEvent:
		return readPlan{func() message { return &corev1.Event{} }, eventFields, "reason=FailedCreate", pageSize}
	case snapshot.KindInjector:
		return readPlan{func() message { return &admissionv1.MutatingWebhookConfiguration{} }, injectorFields, "", pageSize}
	case snapshot.KindNamespace:
		return readPlan{func() message { return &corev1.Namespace{} }, namespaceFields, "", pageSize}
	case snapshot.KindNode:
		return readPlan{func() message { return &corev1.Node{} }, nodeFields, "", pageSize}
	case snapshot.KindPod:
		return readPlan{func() message { return &corev1.Pod{} }, podFields, "status.phase!=" + string(corev1.PodFailed), pageSize}
	case snapshot.KindService:
		return readPlan{func() message { return &corev1.Service{} }, serviceFields, "", pageSize}
	case snapshot.KindEndpointSlice:
		return readPlan{func() message { return &discoveryv1.EndpointSlice{} }, sliceFields, "", pageSize}
	case snapshot.KindSecret:
		return readPlan{func() message { return &corev1.Secret{} }, secretFields, notCredentials, secretPage}
	case snapshot.KindMeshSettings, snapshot.KindClusterSettings, snapshot.KindInjectorSettings:
		return readPlan{func() message { return &corev1.ConfigMap{} }, configMapFields, "metadata.name=" + r.Object, pageSize}
	case snapshot.KindConfigMap:
		return readPlan{func() message { return &corev1.ConfigMap{} }, configMapFields, "", secretPage}
	case source.KindCustomResource:
		return readPlan{func() message { return &metav1.PartialObjectMetadata{} }, nameFields, "", pageSize}
	}
	return readPlan{page: pageSize}
}

// onlyMetadata reports whether only the metadata of objects is requested.
func onlyMetadata(r *source.Resource) bool { return r.Unread || r.Kind == source.KindCustomResource }

// object is one object of a list or watch.
type object struct {
	key     objectKey
	version string
	size    int64
	convert func(*source.Converter) (source.Result, error)
}

// objectKey names an object of one resource.
type objectKey struct{ namespace, name string }

// decode decodes the used fields of an object. The result does not refer to the bytes
// of the item.
func (f *follower) decode(it item) (object, error) {
	switch {
	case it.fault != nil:
		return f.unreadable(it.head, it.fault), nil
	case f.plan.make == nil:
		return f.decodeJSON(it.bytes)
	}
	stripped, err := f.plan.keep.strip(f.buf[:0], it.bytes)
	if err != nil {
		return object{}, &answerError{err}
	}
	f.buf = stripped
	o := f.plan.make()
	if err := o.Unmarshal(stripped); err != nil {
		return object{}, &answerError{errMalformed}
	}
	size := int64(len(stripped))
	if m, ok := o.(*corev1.ConfigMap); ok && f.res.Kind == snapshot.KindConfigMap {
		maps.DeleteFunc(m.Data, func(key, _ string) bool { return !source.IsCAKey(key) })
		size = int64(m.Size()) // most ConfigMaps hold other data, which may be large
	}
	meta := o.GetObjectMeta()
	key := objectKey{meta.GetNamespace(), meta.GetName()}
	convert := func(c *source.Converter) (source.Result, error) { return c.Convert(o, snapshot.Place{}) }
	if f.res.Unread {
		convert = func(c *source.Converter) (source.Result, error) {
			return c.Unread(&f.res, key.namespace, key.name), nil
		}
	}
	return object{key: key, version: meta.GetResourceVersion(), size: size, convert: convert}, nil
}

// unreadable returns an object that cannot be decoded: its last good version stays.
func (f *follower) unreadable(h head, fault error) object {
	return object{
		key: h.key, version: h.version, size: f.known[h.key].size,
		convert: func(c *source.Converter) (source.Result, error) {
			r := source.Result{Key: f.key(h.key), Security: f.res.Security}
			r.Closed = c.UnreadPolicy(&r, f.res.Group)
			return r, fault
		},
	}
}

func (f *follower) decodeJSON(b []byte) (object, error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Namespace       string             `json:"namespace"`
			Name            string             `json:"name"`
			ResourceVersion string             `json:"resourceVersion"`
			Annotations     stdjson.RawMessage `json:"annotations"`
			ManagedFields   stdjson.RawMessage `json:"managedFields"`
		} `json:"metadata"`
	}
	if err := stdjson.Unmarshal(b, &head); err != nil {
		h := headOfJSON(b, "")
		if h.key.name == "" {
			return object{}, &answerError{err}
		}
		return f.unreadable(h, err), nil
	}
	group, _, _ := strings.Cut(head.APIVersion, "/")
	if group != f.res.Group || head.Kind != f.res.KubeKind {
		return object{}, &answerError{fmt.Errorf("holds a %.100q of %.100q", head.Kind, head.APIVersion)}
	}
	m := head.Metadata
	return object{
		key: objectKey{m.Namespace, m.Name}, version: m.ResourceVersion,
		size:    int64(len(b) - len(m.Annotations) - len(m.ManagedFields)), // which are not kept
		convert: func(c *source.Converter) (source.Result, error) { return c.DecodeJSON(b) },
	}, nil
}
