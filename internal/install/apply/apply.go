// Package apply writes the objects of an installation to a cluster, waits until they
// work, compares them with the cluster, and deletes them.
//
// An object belongs to an installation by its label. Apply neither changes nor deletes
// others, such as the objects of an Istio.
package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/output"
)

// manager owns the applied fields.
const manager = "meshctl-install"

// replicasManager owns the first number of replicas of autoscaled Deployments. If it were
// manager's, each run would set it again.
const replicasManager = "meshctl-install-replicas"

// maxListed bounds the objects of a list.
const maxListed = 5000

// Cluster is a cluster to install in.
type Cluster struct {
	Name string // in messages
	API  *kube.Client
}

// Options configure Install and Uninstall.
type Options struct {
	Force  bool // take over fields of other managers
	DryRun bool // write nothing
	// Wait bounds the wait for each Deployment and webhook to be available; zero does not wait.
	Wait time.Duration
	// WriteCA writes the signing CA, when the namespaces exist and before the control plane is
	// created. If it is nil, the Secret of the CA stays as it is.
	WriteCA func(context.Context) error
	// Confirm is asked before Install writes changes with risks; an error prevents them. Nil
	// agrees with all.
	Confirm func([]Risk) error
	// Now is the time by which Uninstall knows whether control planes outside of the cluster run.
	Now time.Time
	// Say reports progress and kept objects.
	Say func(format string, args ...any)
}

// Result counts the objects by what happened to them.
type Result struct{ Created, Changed, Unchanged, Deleted int }

// step is one object of an installation.
type step struct {
	want *unstructured.Unstructured
	have *unstructured.Unstructured // nil if there is none
	keep string                     // the reason to leave have as it is
	from string                     // the installation to which have belongs until it is written; empty for want's
}

// Install applies the objects of an installation in their order, and deletes the objects
// of the installation that it no longer has. It writes nothing unless it may own every
// object. With DryRun it returns the differences as text.
func (c *Cluster) Install(ctx context.Context, v *install.Values, o Options) (Result, string, error) {
	var r Result
	objects, err := install.Objects(v)
	if err != nil {
		return r, "", err
	}
	missing, err := c.missingSecrets(ctx, v)
	if err != nil {
		return r, "", err
	}
	for _, s := range missing {
		if s.Name != store.CACerts || o.WriteCA == nil {
			return r, "", fmt.Errorf("%s: nothing is written: the control plane needs Secret %s/%s: %s", c.Name, v.Namespace, s.Name, s.Fix)
		}
	}
	steps, err := c.plan(ctx, v, objects)
	if err != nil {
		return r, "", err
	}
	stale, err := c.owned(ctx, v.Installation(), objects)
	if err != nil {
		return r, "", err
	}
	found := risks(steps, stale)
	if o.DryRun {
		for _, risk := range found {
			o.Say("it %s", risk.Text)
		}
		text, err := c.diff(ctx, steps, stale, o, &r)
		return r, text, err
	}
	if len(found) > 0 && o.Confirm != nil {
		if err := o.Confirm(found); err != nil {
			return r, "", err
		}
	}
	var awaited []*unstructured.Unstructured
	for i, s := range steps {
		if i > 0 && s.want.GetKind() != "Namespace" && steps[i-1].want.GetKind() == "Namespace" && o.WriteCA != nil {
			if err := o.WriteCA(ctx); err != nil {
				return r, "", err
			}
		}
		if injected(s.want) {
			// The injector fills in the image.
			if err := c.wait(ctx, awaited, o); err != nil {
				return r, "", err
			}
			awaited = nil
		}
		said, err := c.apply(ctx, s, o, &r)
		if err == nil && s.have == nil {
			err = c.scale(ctx, s.want, objects)
		}
		if err != nil {
			return r, "", err
		}
		switch s.want.GetKind() {
		case "Deployment", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			awaited = append(awaited, s.want)
		}
		o.Say("[%d/%d] %s %s", i+1, len(steps)+len(stale), said, install.Ref(s.want))
	}
	if err := c.deleteAll(ctx, stale, o, len(steps), &r); err != nil {
		return r, "", err
	}
	return r, "", c.wait(ctx, awaited, o)
}

// plan reads the objects that exist, and refuses objects of others.
func (c *Cluster) plan(ctx context.Context, v *install.Values, objects []*unstructured.Unstructured) ([]step, error) {
	var steps []step
	var refused []string
	for _, want := range objects {
		have, err := c.API.GetAny(ctx, want)
		if err != nil {
			return nil, fmt.Errorf("%s: read %s: %w", c.Name, install.Ref(want), err)
		}
		s := step{want: want, have: have}
		if have != nil {
			if err := s.claim(v); err != nil {
				refused = append(refused, err.Error())
			}
		}
		steps = append(steps, s)
	}
	if len(refused) > 0 {
		return nil, fmt.Errorf("%s: nothing is written: %s; install beside it with --revision NAME, or remove it first", c.Name, someOf(refused))
	}
	return steps, nil
}

// missingSecrets returns the Secrets that the control plane needs and that do not exist.
func (c *Cluster) missingSecrets(ctx context.Context, v *install.Values) ([]install.RequiredSecret, error) {
	var out []install.RequiredSecret
	for _, s := range v.RequiredSecrets() {
		secret := &unstructured.Unstructured{}
		secret.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Secret"})
		secret.SetNamespace(v.Namespace)
		secret.SetName(s.Name)
		have, err := c.API.GetAny(ctx, secret)
		if err != nil {
			return nil, fmt.Errorf("%s: read %s: %w", c.Name, install.Ref(secret), err)
		}
		if have == nil {
			out = append(out, s)
		}
	}
	return out, nil
}

// leaveFailurePolicy leaves the failure policy of a validation to the control plane, which
// makes it Fail once it serves.
func (s *step) leaveFailurePolicy() {
	was, _, _ := unstructured.NestedSlice(s.have.Object, "webhooks")
	hooks, _, _ := unstructured.NestedSlice(s.want.Object, "webhooks")
	for i := range min(len(hooks), len(was)) {
		before, _ := was[i].(map[string]any)
		hook, _ := hooks[i].(map[string]any)
		if before["failurePolicy"] == "Fail" {
			delete(hook, "failurePolicy")
		}
	}
	s.want.Object["webhooks"] = hooks
}

// claim decides whether the installation may write an object that exists.
func (s *step) claim(v *install.Values) error {
	labels := s.have.GetLabels()
	owner, want := labels[install.LabelInstallation], s.want.GetLabels()[install.LabelInstallation]
	manager := labels[install.LabelManagedBy]
	switch {
	case s.want.GetKind() == "Namespace":
		if owner == "" {
			labels := s.want.GetLabels()
			delete(labels, install.LabelInstallation) // uninstall keeps it
			s.want.SetLabels(labels)
		}
		return sameNetwork(s.have, s.want)
	case want == install.Shared && (owner == "" || manager != install.ManagedBy):
		s.keep = "it is not meshctl's"
	case owner != "" && manager != install.ManagedBy:
		return fmt.Errorf("%s exists and is managed by %s", install.Ref(s.want), cmp.Or(manager, "another program"))
	case want == install.Shared && s.want.GetKind() == "ConfigMap" && v.Revision != "":
		s.keep = "all revisions share it"
	case s.want.GetKind() == "ValidatingWebhookConfiguration" && owner == want:
		s.leaveFailurePolicy()
	case owner == "" || owner == install.Shared && owner != want:
		return fmt.Errorf("%s exists and is not of installation %s", install.Ref(s.want), want)
	case owner != want: // a gateway or a tag: the names of all else contain the revision
		s.from = owner
	}
	return nil
}

const labelNetwork = "topology.istio.io/network"

// sameNetwork refuses to move a cluster to another network: endpoints of other clusters
// would be reached wrongly until all control planes have read the change.
func sameNetwork(have, want *unstructured.Unstructured) error {
	was, is := have.GetLabels()[labelNetwork], want.GetLabels()[labelNetwork]
	if was == "" || is == "" || was == is {
		return nil
	}
	return fmt.Errorf("%s has the label %s=%s, not %s: remove the label if the network has changed", install.Ref(want), labelNetwork, was, is)
}

// owned returns the objects of the installation that are not in objects, in the order to
// delete. Objects of Helm charts are Helm's.
func (c *Cluster) owned(ctx context.Context, installation string, objects []*unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	wanted := map[string]bool{}
	for _, o := range objects {
		wanted[install.Ref(o)] = true
	}
	var out []*unstructured.Unstructured
	for _, kind := range install.Kinds() {
		items, err := c.API.ListAny(ctx, kind, "", install.LabelInstallation+"="+installation+","+install.LabelManagedBy+"="+install.ManagedBy, maxListed)
		if err != nil {
			return nil, fmt.Errorf("%s: list %s: %w", c.Name, kind.Kind, err)
		}
		for i := range items {
			items[i].SetGroupVersionKind(kind)
			if !wanted[install.Ref(&items[i])] && !derived(&items[i]) {
				out = append(out, &items[i])
			}
		}
	}
	return out, nil
}

// derived reports whether Kubernetes made an object, with the labels of another one: the
// EndpointSlices of a Service.
func derived(o *unstructured.Unstructured) bool { return len(o.GetOwnerReferences()) > 0 }

// apply writes one object and returns what happened to it.
func (c *Cluster) apply(ctx context.Context, s step, o Options, r *Result) (string, error) {
	if s.keep != "" {
		r.Unchanged++
		return "kept (" + s.keep + ")", nil
	}
	got, err := c.API.ApplyAny(ctx, s.want, kube.ApplyOptions{Manager: manager, Force: o.Force})
	switch {
	case err != nil:
		return "", c.explain(s.want, err)
	case s.have == nil:
		r.Created++
		return "created", nil
	case got.GetResourceVersion() == s.have.GetResourceVersion():
		r.Unchanged++
		return "unchanged", nil
	}
	r.Changed++
	return "changed", nil
}

// scale gives a new Deployment the least number of replicas of its autoscaler, which would
// do so seconds later. The autoscaler then changes the number.
func (c *Cluster) scale(ctx context.Context, d *unstructured.Unstructured, objects []*unstructured.Unstructured) error {
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == "HorizontalPodAutoscaler" && o.GetNamespace() == d.GetNamespace() && o.GetName() == d.GetName()
	})
	if d.GetKind() != "Deployment" || i < 0 {
		return nil
	}
	least, _, _ := unstructured.NestedInt64(objects[i].Object, "spec", "minReplicas")
	if err := c.API.MergeAny(ctx, d, map[string]any{"spec": map[string]any{"replicas": least}}, replicasManager); err != nil {
		return c.explain(d, err)
	}
	return nil
}

// explain adds the object and the fix to an error of an apply.
func (c *Cluster) explain(o *unstructured.Unstructured, err error) error {
	err = fmt.Errorf("%s: apply %s: %w", c.Name, install.Ref(o), err)
	switch {
	case apierrors.IsConflict(err):
		return fmt.Errorf("%w; other programs set these fields: take them over with --force", err)
	case apierrors.IsInvalid(err) && strings.Contains(err.Error(), "field is immutable"):
		return fmt.Errorf("%w; delete it first: kubectl -n %s delete %s %s", err, cmp.Or(o.GetNamespace(), "default"), strings.ToLower(o.GetKind()), o.GetName())
	case apierrors.IsNotFound(err) && strings.HasSuffix(o.GroupVersionKind().Group, ".istio.io"):
		return fmt.Errorf("%w; the kind is not installed: install it with --crds", err)
	}
	return err
}

func (c *Cluster) deleteAll(ctx context.Context, objects []*unstructured.Unstructured, o Options, done int, r *Result) error {
	for i, object := range objects {
		if err := c.delete(ctx, object); err != nil {
			return err
		}
		r.Deleted++
		o.Say("[%d/%d] deleted %s", done+i+1, done+len(objects), install.Ref(object))
	}
	return nil
}

func (c *Cluster) delete(ctx context.Context, o *unstructured.Unstructured) error {
	if err := c.API.Delete(ctx, o); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: delete %s: %w", c.Name, install.Ref(o), err)
	}
	return nil
}

// injected reports whether the injector fills in the containers of a Deployment.
func injected(o *unstructured.Unstructured) bool {
	containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
	return slices.ContainsFunc(containers, func(c any) bool {
		container, _ := c.(map[string]any)
		return container["image"] == "auto"
	})
}

// diff returns what Install would change. The API server computes each result.
func (c *Cluster) diff(ctx context.Context, steps []step, stale []*unstructured.Unstructured, o Options, r *Result) (string, error) {
	var out strings.Builder
	var errs []error
	show := func(ref string, was, is *unstructured.Unstructured) {
		before, err := text(was)
		after, err2 := text(is)
		if errs = append(errs, err, err2); before != after {
			fmt.Fprintf(&out, "--- %s\n+++ %s\n%s", ref, ref, output.UnifiedDiff(before, after))
		}
	}
	for _, s := range steps {
		ref := install.Ref(s.want)
		switch {
		case s.keep != "":
			o.Say("kept (%s) %s", s.keep, ref)
		case s.have == nil:
			// Its namespace or its kind may not exist yet, so nothing can be asked.
			r.Created++
			show(ref, nil, s.want)
		default:
			got, err := c.API.ApplyAny(ctx, s.want, kube.ApplyOptions{Manager: manager, Force: o.Force, DryRun: true})
			if err != nil {
				errs = append(errs, c.explain(s.want, err))
				continue
			}
			was := out.Len()
			show(ref, s.have, got)
			if out.Len() > was {
				r.Changed++
			} else {
				r.Unchanged++
			}
		}
	}
	for _, object := range stale {
		r.Deleted++
		show(install.Ref(object), object, nil)
	}
	return out.String(), errors.Join(errs...)
}

// text returns the part of an object that its writers set; empty for nil.
func text(o *unstructured.Unstructured) (string, error) {
	if o == nil {
		return "", nil
	}
	o = o.DeepCopy()
	delete(o.Object, "status")
	for _, name := range []string{"managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"} {
		unstructured.RemoveNestedField(o.Object, "metadata", name)
	}
	out, err := yaml.Marshal(o.Object)
	return string(out), err
}
