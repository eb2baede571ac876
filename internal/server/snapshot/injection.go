package snapshot

import (
	"slices"
	"time"
)

// Injection is what the analysis of a mesh must know about the injection of a pod.
type Injection struct {
	// Label and Annotation are the values of sidecar.istio.io/inject, or "".
	Label, Annotation string
	// Injected reports whether an injector has changed the pod, and Revision is the revision
	// of this injector.
	Injected bool
	Revision string
	// Proxy is the image of the container istio-proxy, or "". ChosenImage reports whether an
	// annotation of the pod sets it.
	Proxy       string
	ChosenImage bool
	// Unpulled is the image of a container of the injector that the node cannot pull, or "",
	// and Reason the node's words.
	Unpulled, Reason string
	// ControlPlane is the image of the container discovery, or "".
	ControlPlane string
	// Federates reports whether the container discovery has a flag for other trust domains.
	Federates bool
	// Ports holds the TCP ports that the containers besides the proxy declare. It is empty if one of
	// them declares none.
	Ports []uint32
	// Owner is the object that makes such pods, such as a Deployment. It is empty if a person
	// made the pod.
	Owner Owner
	// Ending reports whether the pod is being deleted.
	Ending bool
}

// Owner is the object that makes pods.
type Owner struct{ Kind, Name string }

// CreationFailure is the state of a ReplicaSet, or an Event, by which the pods of an object are not
// created.
type CreationFailure struct {
	Meta
	Kind Kind // KindReplicaSet or KindEvent
	// Owner is the object that makes the pods: a Deployment, not its ReplicaSet.
	Owner Owner
	// Reason is the answer of the API server.
	Reason string
	// Last is the last time of an Event.
	Last time.Time
}

// Key implements Object.
func (o *CreationFailure) Key() Key { return o.key(o.Kind) }

// Injector is a MutatingWebhookConfiguration whose webhooks inject proxies into pods.
type Injector struct {
	Meta
	// Revision is the revision of the control plane, and Tag another name for it, or "".
	Revision, Tag string
	Webhooks      []InjectorWebhook
}

// Key implements Object.
func (o *Injector) Key() Key { return o.key(KindInjector) }

// InjectorWebhook is a webhook of an Injector.
type InjectorWebhook struct {
	Name string
	// Namespace and Service name the Service that the API server calls. They are empty for a
	// URL.
	Namespace, Service string
	// Namespaces and Objects select namespaces and pods by their labels.
	Namespaces, Objects []LabelRequirement
}

// Selects reports whether the API server calls the webhook for a pod.
func (w *InjectorWebhook) Selects(namespace, pod map[string]string) bool {
	return matches(w.Namespaces, namespace) && matches(w.Objects, pod)
}

// LabelRequirement is a condition on the value of a label.
type LabelRequirement struct {
	Key string
	// Not reverses the condition.
	Not bool
	// Values are the wanted values; nil means any.
	Values []string
}

func matches(all []LabelRequirement, labels map[string]string) bool {
	for i := range all {
		r := &all[i]
		value, has := labels[r.Key]
		if (has && (r.Values == nil || slices.Contains(r.Values, value))) == r.Not {
			return false
		}
	}
	return true
}
