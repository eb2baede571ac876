package autoregister

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/workload"
)

// Annotations of an entry.
const (
	annotationGroup        = "istio.io/autoRegistrationGroup"
	annotationController   = "istio.io/workloadController"
	annotationConnected    = "istio.io/connectedAt"
	annotationDisconnected = "istio.io/disconnectedAt"
)

const (
	apiVersion = "networking.istio.io/v1"
	manager    = "meshctl-autoregistration" // of the fields of an entry
)

// object returns an object of a kind, without its content.
func object(kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// stamp formats a time as Istio does.
func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// register makes the entry of a machine, or takes it over.
func (r *Registrations) register(ctx context.Context, w entryWrite) error {
	was, err := w.api.GetAny(ctx, object("WorkloadEntry", w.entry.Namespace, w.entry.Name))
	if err != nil {
		return err
	}
	if was != nil {
		switch group := was.GetAnnotations()[annotationGroup]; group {
		case w.node.WorkloadGroup:
		case "":
			return errors.New("there is such a WorkloadEntry, which no registration made: delete it, or name it in ISTIO_META_WORKLOAD_ENTRY")
		default:
			return fmt.Errorf("the WorkloadEntry is registered with WorkloadGroup %s: use another name in ISTIO_META_WORKLOAD_ENTRY, or wait until that machine is gone", group)
		}
	}
	found, err := w.api.GetAny(ctx, object("WorkloadGroup", w.entry.Namespace, w.node.WorkloadGroup))
	switch {
	case err != nil:
		return err
	case found == nil:
		return fmt.Errorf("there is no WorkloadGroup %s/%s", w.entry.Namespace, w.node.WorkloadGroup)
	}
	text, err := json.Marshal(found)
	if err != nil {
		return err
	}
	group, err := workload.ParseGroup(text, w.entry.Namespace)
	if err != nil {
		return err
	}
	if account := group.ServiceAccount(); account != w.who.Identity.ServiceAccount {
		return fmt.Errorf("WorkloadGroup %s/%s is of service account %q", group.Namespace, group.Name, account)
	}
	o, err := entryOf(group, w.joined)
	if err != nil {
		return err
	}
	annotations := o.GetAnnotations()
	annotations[annotationController], annotations[annotationConnected] = r.cfg.Controller, stamp(w.at)
	o.SetAnnotations(annotations)
	o.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: apiVersion, Kind: "WorkloadGroup", Name: group.Name, UID: found.GetUID(), Controller: new(true),
	}})
	return apply(ctx, w.api, o)
}

// entryOf returns the entry of a machine. The proxy's own labels, network and locality precede
// the group's, and its metadata precede its template.
func entryOf(g *workload.Group, j joined) (*unstructured.Unstructured, error) {
	spec := &networkingv1alpha3.WorkloadEntry{}
	if t := g.Spec.GetTemplate(); t != nil {
		spec, _ = proto.Clone(t).(*networkingv1alpha3.WorkloadEntry)
	}
	labels := map[string]string{}
	for _, from := range []map[string]string{spec.GetLabels(), g.Spec.GetMetadata().GetLabels(), j.node.Labels} {
		maps.Copy(labels, from)
	}
	spec.Address, spec.Labels, spec.ServiceAccount = j.node.ID.IP.String(), labels, g.ServiceAccount()
	if j.node.Network != "" {
		spec.Network = string(j.node.Network)
	}
	if l := j.node.Locality; l != (mesh.Locality{}) {
		spec.Locality = l.String()
	}
	text, err := protojson.Marshal(spec)
	if err != nil {
		return nil, err
	}
	o := object("WorkloadEntry", j.entry.Namespace, j.entry.Name)
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	o.Object["spec"] = fields
	annotations := map[string]string{}
	maps.Copy(annotations, g.Spec.GetMetadata().GetAnnotations())
	annotations[annotationGroup] = g.Name
	if j.node.ReportsHealth {
		annotations[mesh.AnnotationHealthChecks] = "true"
	}
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	return o, nil
}

func apply(ctx context.Context, api *kube.Client, o *unstructured.Unstructured) error {
	_, err := api.ApplyAny(ctx, o, kube.ApplyOptions{Manager: manager, Force: true})
	return err
}

// own returns the entry if this control plane was the last to register it, for a proxy with the
// same service account, and nil otherwise.
func (r *Registrations) own(ctx context.Context, w entryWrite) (*unstructured.Unstructured, error) {
	o, err := w.api.GetAny(ctx, object("WorkloadEntry", w.entry.Namespace, w.entry.Name))
	if err != nil || o == nil || o.GetAnnotations()[annotationController] != r.cfg.Controller {
		return nil, err
	}
	if account, _, _ := unstructured.NestedString(o.Object, "spec", "serviceAccount"); account != w.who.Identity.ServiceAccount {
		return nil, nil
	}
	return o, nil
}

// markDisconnected notes the time at which the last stream ended, so that another control
// plane deletes the entry if this one cannot.
func (r *Registrations) markDisconnected(ctx context.Context, w entryWrite) error {
	o, err := r.own(ctx, w)
	if o == nil {
		return err
	}
	annotations := o.GetAnnotations()
	delete(annotations, annotationConnected)
	annotations[annotationDisconnected] = stamp(w.gone)
	written := object("WorkloadEntry", o.GetNamespace(), o.GetName())
	written.Object["spec"] = o.Object["spec"]
	written.SetLabels(o.GetLabels())
	written.SetAnnotations(annotations)
	written.SetOwnerReferences(o.GetOwnerReferences())
	written.SetResourceVersion(o.GetResourceVersion()) // a conflict is tried again
	return apply(ctx, w.api, written)
}

// deregister deletes the entry, unless the proxy has connected to another control plane.
func (r *Registrations) deregister(ctx context.Context, w entryWrite) error {
	o, err := r.own(ctx, w)
	if o == nil || o.GetAnnotations()[annotationDisconnected] != stamp(w.gone) {
		return err
	}
	return remove(ctx, w.api, o)
}

// remove deletes an entry if it is still as it was read.
func remove(ctx context.Context, api *kube.Client, o kube.Object) error {
	err := api.DeleteUnchanged(ctx, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
