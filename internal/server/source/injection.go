package source

import (
	"cmp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// Names of the injection. Pods have the annotations, MutatingWebhookConfigurations the tag.
const (
	nameInject           = "sidecar.istio.io/inject" // a label and an annotation
	nameRevision         = "istio.io/rev"            // a label and an annotation
	labelTag             = "istio.io/tag"
	annotationStatus     = "sidecar.istio.io/status"
	annotationProxyImage = "sidecar.istio.io/proxyImage"
	injectorDomain       = "sidecar-injector.istio.io"
)

// AnalyzesAnnotation reports whether an analysis reads the annotation of a Pod, besides those of
// ReadsAnnotation.
func AnalyzesAnnotation(key string) bool {
	return key == nameInject || key == nameRevision || key == annotationStatus || key == annotationProxyImage
}

// injection returns what an analysis must know about a pod.
func (c *conversion) injection(o *corev1.Pod) *snapshot.Injection {
	if !c.Analysis {
		return nil
	}
	_, injected := o.Annotations[annotationStatus]
	_, chosen := o.Annotations[annotationProxyImage]
	out := &snapshot.Injection{
		Label: o.Labels[nameInject], Annotation: o.Annotations[nameInject],
		Injected: injected, Revision: o.Annotations[nameRevision], ChosenImage: chosen,
		Owner: ownerOf(&o.ObjectMeta), Ending: o.DeletionTimestamp != nil, Ports: declaredPorts(o),
	}
	for _, list := range [][]corev1.Container{o.Spec.InitContainers, o.Spec.Containers} {
		for i := range list {
			switch list[i].Name {
			case "istio-proxy":
				out.Proxy = list[i].Image
			case "discovery":
				out.ControlPlane, out.Federates = list[i].Image, federates(&list[i])
			}
		}
	}
	for _, list := range [][]corev1.ContainerStatus{o.Status.InitContainerStatuses, o.Status.ContainerStatuses} {
		for i := range list {
			w := list[i].State.Waiting
			if w == nil || out.Unpulled != "" || !strings.HasPrefix(list[i].Name, "istio-") {
				continue
			}
			switch w.Reason {
			case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable":
				out.Unpulled, out.Reason = cmp.Or(list[i].Image, out.Proxy), w.Reason
				if w.Message != "" {
					out.Reason += ": " + w.Message
				}
			}
		}
	}
	return out
}

// declaredPorts returns the TCP ports that the containers besides the proxy declare, or nil if one of them
// declares none.
func declaredPorts(o *corev1.Pod) []uint32 {
	var out []uint32
	add := func(c *corev1.Container) bool {
		if strings.HasPrefix(c.Name, "istio-") {
			return true
		}
		before := len(out)
		for _, p := range c.Ports {
			if (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) && fields.IsPort(p.ContainerPort) {
				out = append(out, uint32(p.ContainerPort))
			}
		}
		return len(out) > before
	}
	for i := range o.Spec.Containers {
		if !add(&o.Spec.Containers[i]) {
			return nil
		}
	}
	for i := range o.Spec.InitContainers {
		c := &o.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways && !add(c) {
			return nil
		}
	}
	return out
}

// federates reports whether a container has a flag for other trust domains, or its variable.
func federates(c *corev1.Container) bool {
	return slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--federate") }) ||
		slices.ContainsFunc(c.Env, func(v corev1.EnvVar) bool { return strings.HasPrefix(v.Name, "MESHCTL_FEDERATE") })
}

// ownerOf returns the object that makes objects like this one: the Deployment, not its
// ReplicaSet.
func ownerOf(o *metav1.ObjectMeta) snapshot.Owner {
	for _, owner := range o.OwnerReferences {
		if owner.Controller != nil && *owner.Controller {
			w := mesh.WorkloadOf(mesh.Workload{Kind: owner.Kind, Name: owner.Name}, o.Labels)
			return snapshot.Owner{Kind: w.Kind, Name: w.Name}
		}
	}
	return snapshot.Owner{}
}

var replicaSetKind = kubeKind(kind{
	group: groupApps, name: "ReplicaSet", plural: "replicasets", versions: v1,
	resources: []Resource{{Use: ForAnalysis, Optional: true, Without: "it is not reported which pods the injector refuses"}},
}, (*conversion).replicaSet)

func (c *conversion) replicaSet(o *appsv1.ReplicaSet) *fields.Error {
	if !c.Analysis || o.DeletionTimestamp != nil {
		return nil
	}
	for _, condition := range o.Status.Conditions {
		if condition.Type == appsv1.ReplicaSetReplicaFailure && condition.Status == corev1.ConditionTrue && condition.Reason == "FailedCreate" {
			owner := ownerOf(&o.ObjectMeta)
			if owner.Name == "" {
				owner = snapshot.Owner{Kind: "ReplicaSet", Name: o.Name}
			}
			c.object = &snapshot.CreationFailure{Meta: c.meta, Kind: snapshot.KindReplicaSet, Owner: owner, Reason: condition.Message}
		}
	}
	return nil
}

var eventKind = kubeKind(kind{
	name: "Event", plural: "events", versions: v1,
	resources: []Resource{{Use: ForAnalysis, Optional: true, Without: "it is not reported which pods of StatefulSets and DaemonSets the injector refuses"}},
}, (*conversion).event)

// event delivers the Events of objects that do not keep in their status why they cannot create pods.
func (c *conversion) event(o *corev1.Event) *fields.Error {
	if !c.Analysis || o.Reason != "FailedCreate" || o.InvolvedObject.Kind == "ReplicaSet" || !strings.Contains(o.Message, injectorDomain) {
		return nil
	}
	c.object = &snapshot.CreationFailure{
		Meta: c.meta, Kind: snapshot.KindEvent, Owner: snapshot.Owner{Kind: o.InvolvedObject.Kind, Name: o.InvolvedObject.Name},
		Reason: o.Message, Last: o.LastTimestamp.Time,
	}
	return nil
}

var injectorKind = kubeKind(kind{
	group: groupAdmission, name: "MutatingWebhookConfiguration", plural: "mutatingwebhookconfigurations", versions: v1, clusterWide: true,
	resources: []Resource{{Use: ForAnalysis, Optional: true, Without: "it is not known which pods are injected"}},
}, (*conversion).injector)

func (c *conversion) injector(o *admissionv1.MutatingWebhookConfiguration) *fields.Error {
	if !c.Analysis {
		return nil
	}
	out := &snapshot.Injector{
		Meta: c.meta, Revision: cmp.Or(o.Labels[nameRevision], mesh.DefaultRevision), Tag: o.Labels[labelTag],
	}
	for i := range o.Webhooks {
		w := &o.Webhooks[i]
		if !strings.HasSuffix(w.Name, injectorDomain) {
			continue
		}
		hook := snapshot.InjectorWebhook{Name: w.Name, Namespaces: requirementsOf(w.NamespaceSelector), Objects: requirementsOf(w.ObjectSelector)}
		if s := w.ClientConfig.Service; s != nil {
			hook.Namespace, hook.Service = s.Namespace, s.Name
		}
		out.Webhooks = append(out.Webhooks, hook)
	}
	if len(out.Webhooks) > 0 {
		c.object = out
	}
	return nil
}

// requirementsOf returns the conditions of a selector, which may be nil.
func requirementsOf(s *metav1.LabelSelector) []snapshot.LabelRequirement {
	if s == nil {
		return nil
	}
	var out []snapshot.LabelRequirement
	for key, value := range s.MatchLabels {
		out = append(out, snapshot.LabelRequirement{Key: key, Values: []string{value}})
	}
	slices.SortFunc(out, func(a, b snapshot.LabelRequirement) int { return strings.Compare(a.Key, b.Key) })
	for _, e := range s.MatchExpressions {
		r := snapshot.LabelRequirement{Key: e.Key}
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			r.Values = e.Values
		case metav1.LabelSelectorOpNotIn:
			r.Not, r.Values = true, e.Values
		case metav1.LabelSelectorOpDoesNotExist:
			r.Not = true
		}
		out = append(out, r)
	}
	return out
}
