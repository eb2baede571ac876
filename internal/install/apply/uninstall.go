package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/clustersettings"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
)

// podsEnd bounds the wait for the pods of the control plane to end.
const podsEnd = 2 * time.Minute

// Installations returns the names of the installations in the cluster, sorted.
func (c *Cluster) Installations(ctx context.Context) ([]string, error) {
	var out []string
	for _, kind := range install.Kinds() {
		items, err := c.API.ListAny(ctx, kind, "", install.LabelInstallation, maxListed)
		if err != nil {
			return nil, fmt.Errorf("%s: list %s: %w", c.Name, kind.Kind, err)
		}
		for i := range items {
			if !derived(&items[i]) {
				out = append(out, items[i].GetLabels()[install.LabelInstallation])
			}
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(name string) bool { return name == install.Shared }), nil
}

// Uninstall deletes the objects of installations. With the last installation of the
// cluster it also deletes what all share, what the control plane wrote, and the unused
// accounts by which other clusters read this one. It keeps CustomResourceDefinitions that
// have objects, and namespaces with objects of others. It returns the number of deleted
// objects.
func (c *Cluster) Uninstall(ctx context.Context, installations []string, namespace string, o Options) (Result, error) {
	var r Result
	all, err := c.Installations(ctx)
	if err != nil {
		return r, err
	}
	for _, name := range installations {
		objects, err := c.owned(ctx, name, nil)
		if err != nil {
			return r, err
		}
		if len(objects) == 0 && slices.Contains(all, name) {
			return r, fmt.Errorf("%s: meshctl did not make installation %s: remove it with helm uninstall", c.Name, name)
		}
		if err := c.removeInstallation(ctx, objects, namespace, o, &r); err != nil {
			return r, err
		}
	}
	left := slices.DeleteFunc(all, func(name string) bool { return slices.Contains(installations, name) })
	if len(left) > 0 {
		o.Say("kept what the installations share, as there is still %s", strings.Join(left, ", "))
		return r, nil
	}
	return r, c.removeShared(ctx, namespace, o, &r)
}

// remove deletes objects, or names them with DryRun.
func (c *Cluster) remove(ctx context.Context, objects []*unstructured.Unstructured, o Options, r *Result) error {
	for _, object := range objects {
		said := "would delete"
		if !o.DryRun {
			said = "deleted"
			if err := c.delete(ctx, object); err != nil {
				return err
			}
		}
		r.Deleted++
		o.Say("%s %s", said, install.Ref(object))
	}
	return nil
}

// removeInstallation deletes the objects of an installation, and the Leases of its control planes. It
// waits for the end of the control planes before it deletes their accounts, with which they delete
// their Leases and release the Lease of the writer.
func (c *Cluster) removeInstallation(ctx context.Context, objects []*unstructured.Unstructured, namespace string, o Options, r *Result) error {
	var pods []string
	last := -1 // the last Deployment
	for i, object := range objects {
		if object.GetKind() != deploymentKind.Kind {
			continue
		}
		last = i
		found, err := c.controlPlanePods(ctx, object)
		if err != nil {
			return err
		}
		pods = append(pods, found...)
	}
	if err := c.remove(ctx, objects[:last+1], o, r); err != nil {
		return err
	}
	if len(pods) > 0 && !o.DryRun {
		o.Say("waiting for the end of the control plane: %s", output.Plural(len(pods), "pod"))
		if err := c.waitForEnd(ctx, objects[:last+1], o); err != nil {
			return err
		}
	}
	if err := c.remove(ctx, objects[last+1:], o, r); err != nil {
		return err
	}
	leases, err := c.leasesOf(ctx, namespace, pods)
	if err != nil {
		return err
	}
	return c.remove(ctx, leases, o, r)
}

// controlPlanePods returns the pods of a Deployment as namespace/name, none if it is no control plane.
func (c *Cluster) controlPlanePods(ctx context.Context, d *unstructured.Unstructured) ([]string, error) {
	selected, _, _ := unstructured.NestedStringMap(d.Object, "spec", "selector", "matchLabels")
	if d.GetLabels()["app"] != "istiod" || len(selected) == 0 {
		return nil, nil
	}
	pods, err := c.API.ListAny(ctx, install.PodKind, d.GetNamespace(), labels.SelectorFromSet(selected).String(), maxListed)
	if err != nil {
		return nil, fmt.Errorf("%s: list the pods of %s: %w", c.Name, install.Ref(d), err)
	}
	var out []string
	for i := range pods {
		out = append(out, pods[i].GetNamespace()+"/"+pods[i].GetName())
	}
	return out, nil
}

// waitForEnd waits until the control planes of deleted Deployments have ended, and reports those that
// have not.
func (c *Cluster) waitForEnd(ctx context.Context, deleted []*unstructured.Unstructured, o Options) error {
	reason, err := c.until(ctx, podsEnd, func() (string, error) {
		for _, d := range deleted {
			if d.GetKind() != deploymentKind.Kind {
				continue
			}
			if pods, err := c.controlPlanePods(ctx, d); err != nil || len(pods) > 0 {
				return "pod " + strings.Join(pods, ", ") + " still runs", err
			}
		}
		return "", nil
	})
	if reason != "" {
		o.Say("after %s %s", podsEnd, reason)
	}
	return err
}

// leasesOf returns the Leases by which commands find the control planes in pods.
func (c *Cluster) leasesOf(ctx context.Context, namespace string, pods []string) ([]*unstructured.Unstructured, error) {
	if len(pods) == 0 {
		return nil, nil
	}
	leases, err := c.API.ListAny(ctx, leaseKind, namespace, replicas.LeaseSelector, maxListed)
	if err != nil {
		return nil, fmt.Errorf("%s: list Leases: %w", c.Name, err)
	}
	var out []*unstructured.Unstructured
	for i := range leases {
		if slices.Contains(pods, leases[i].GetAnnotations()[replicas.AnnotationPod]) {
			leases[i].SetGroupVersionKind(leaseKind)
			out = append(out, &leases[i])
		}
	}
	return out, nil
}

// runsOutside returns an error if a control plane outside of the cluster reads it: what installations
// leave is its own, too.
func (c *Cluster) runsOutside(ctx context.Context, namespace string, now time.Time) error {
	announced, err := replicas.AnnouncedBy(ctx, c.API, namespace, now)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	for _, a := range announced {
		if a.Pod == "" {
			return fmt.Errorf("%s: control plane %s runs outside of the cluster, and uses what installations leave: stop it, and run the command again a minute later", c.Name, a.Replica)
		}
	}
	return nil
}

// removeShared deletes what the last installation leaves.
func (c *Cluster) removeShared(ctx context.Context, namespace string, o Options, r *Result) error {
	if err := c.runsOutside(ctx, namespace, o.Now); err != nil {
		return err
	}
	if !o.DryRun {
		// Control planes would write their objects again.
		reason, err := c.until(ctx, podsEnd, func() (string, error) {
			pods, err := c.API.ListAny(ctx, install.PodKind, namespace, install.ControlPlanePods, maxListed)
			if err != nil {
				return "", fmt.Errorf("%s: list pods: %w", c.Name, err)
			}
			if len(pods) > 0 {
				return "pod " + pods[0].GetName() + " still runs", nil
			}
			return "", nil
		})
		if err != nil {
			return err
		}
		if reason != "" {
			return fmt.Errorf("%s: after %s %s; run the command again when it has ended", c.Name, podsEnd, reason)
		}
	}
	for _, find := range []func(context.Context, string, Options) ([]*unstructured.Unstructured, error){c.written, c.settings, c.readers} {
		found, err := find(ctx, namespace, o)
		if err != nil {
			return err
		}
		if err := c.remove(ctx, found, o, r); err != nil {
			return err
		}
	}
	shared, err := c.owned(ctx, install.Shared, nil)
	if err != nil {
		return err
	}
	for _, object := range shared {
		kept, err := c.inUse(ctx, object, o)
		if err != nil {
			return err
		}
		if kept != "" {
			o.Say("kept %s: %s", install.Ref(object), kept)
			continue
		}
		if err := c.remove(ctx, []*unstructured.Unstructured{object}, o, r); err != nil {
			return err
		}
	}
	return nil
}

// Kinds that control planes write.
var (
	configMapKind = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	leaseKind     = schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}
)

// written returns the objects that control planes wrote: the roots of the mesh in every
// namespace, and their Leases.
func (c *Cluster) written(ctx context.Context, namespace string, _ Options) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	add := func(kind schema.GroupVersionKind, namespace, selector string, want func(name string) bool) error {
		items, err := c.API.ListAny(ctx, kind, namespace, selector, maxListed)
		if err != nil {
			return fmt.Errorf("%s: list %s: %w", c.Name, kind.Kind, err)
		}
		for i := range items {
			items[i].SetGroupVersionKind(kind)
			if want(items[i].GetName()) {
				out = append(out, &items[i])
			}
		}
		return nil
	}
	if err := add(configMapKind, metav1.NamespaceAll, "istio.io/config=true", func(name string) bool { return name == install.RootConfigMap }); err != nil {
		return nil, err
	}
	err := add(leaseKind, namespace, "", func(name string) bool { return strings.HasPrefix(name, "meshctl-") })
	return out, err
}

// settings returns the ConfigMap with the settings of clusters, which would hold in the next installation,
// too. It leaves out, and reports, one that others wrote as well.
func (c *Cluster) settings(ctx context.Context, namespace string, o Options) ([]*unstructured.Unstructured, error) {
	m := &unstructured.Unstructured{}
	m.SetGroupVersionKind(configMapKind)
	m.SetNamespace(namespace)
	m.SetName(clustersettings.ConfigMap)
	m, err := c.API.GetAny(ctx, m)
	if err != nil || m == nil {
		return nil, err
	}
	for _, f := range m.GetManagedFields() {
		if f.Manager != clustersettings.Manager {
			o.Say("kept %s: %s wrote it, too", install.Ref(m), f.Manager)
			return nil, nil
		}
	}
	return []*unstructured.Unstructured{m}, nil
}

// inUse returns why a shared object must stay, "" if it may be deleted.
func (c *Cluster) inUse(ctx context.Context, o *unstructured.Unstructured, opts Options) (string, error) {
	switch o.GetKind() {
	case "CustomResourceDefinition":
		items, err := c.API.ListAny(ctx, install.KindOf(o), "", "", 1)
		if err != nil {
			return "", fmt.Errorf("%s: list the objects of %s: %w", c.Name, o.GetName(), err)
		}
		if len(items) > 0 {
			return "there are objects, such as " + install.Ref(&items[0]), nil
		}
	case "Namespace":
		contents, err := c.API.Contents(ctx, o.GetName(), maxListed)
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.Name, err)
		}
		for i := range contents {
			if !ofNamespace(&contents[i]) && (!opts.DryRun || contents[i].GetLabels()[install.LabelInstallation] == "") {
				return "it has other objects, such as " + install.Ref(&contents[i]), nil
			}
		}
	}
	return "", nil
}

// ofNamespace reports whether Kubernetes or a control plane made the object, which ends
// with its namespace or its owner.
func ofNamespace(o *unstructured.Unstructured) bool {
	switch o.GetKind() {
	case "Event", "EndpointSlice", "PodMetrics":
		return true
	case "ServiceAccount":
		return o.GetName() == "default"
	case "ConfigMap":
		return o.GetName() == "kube-root-ca.crt" || o.GetName() == install.RootConfigMap
	case "Lease":
		return strings.HasPrefix(o.GetName(), "meshctl-")
	}
	return len(o.GetOwnerReferences()) > 0 || o.GetDeletionTimestamp() != nil
}
