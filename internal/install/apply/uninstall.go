package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/install"
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
		if err := c.remove(ctx, objects, o, &r); err != nil {
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

// removeShared deletes what the last installation leaves.
func (c *Cluster) removeShared(ctx context.Context, namespace string, o Options, r *Result) error {
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
	for _, find := range []func(context.Context, string, Options) ([]*unstructured.Unstructured, error){c.written, c.readers} {
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
