package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

// Labels and annotations by which pods and namespaces use a control plane.
const (
	labelRevision  = "istio.io/rev"
	labelTag       = "istio.io/tag"
	labelInjection = "istio-injection"
	statusOfInject = "sidecar.istio.io/status"
)

var namespaceKind = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}

// maxPods bounds the pods that are read.
const maxPods = 50_000

// Users returns what in the cluster uses the control planes of installations, as effects of
// their end: pods with proxies, namespaces whose pods they inject and, if another control plane stays,
// the gateways that end with the installations.
func (c *Cluster) Users(ctx context.Context, installations []string) ([]string, error) {
	var revisions, selectors []string // values of istio.io/rev: of control planes, and with their tags
	own := map[string]bool{}          // Deployments that end, too: control planes and gateways
	var gateways, others []string     // Deployments that end, and installations with a control plane that stay
	for _, kind := range []schema.GroupVersionKind{deploymentKind, mutatingKind} {
		items, err := c.API.ListAny(ctx, kind, "", install.LabelInstallation, maxListed)
		if err != nil {
			return nil, fmt.Errorf("%s: list %s: %w", c.Name, kind.Kind, err)
		}
		for i := range items {
			labels := items[i].GetLabels()
			isControlPlane := kind == deploymentKind && labels["app"] == "istiod"
			if of := labels[install.LabelInstallation]; !slices.Contains(installations, of) {
				if isControlPlane {
					others = append(others, of)
				}
				continue
			}
			name := items[i].GetNamespace() + "/" + items[i].GetName()
			own[name] = true
			switch {
			case isControlPlane:
				revisions = append(revisions, labels[labelRevision])
			case kind == deploymentKind:
				gateways = append(gateways, name)
			}
			if tag := labels[labelTag]; tag != "" {
				selectors = append(selectors, tag)
			}
		}
	}
	if len(revisions) == 0 {
		return nil, nil
	}
	selectors = append(selectors, revisions...)
	namespaces, err := c.API.ListAny(ctx, namespaceKind, "", "", maxListed)
	if err != nil {
		return nil, fmt.Errorf("%s: list namespaces: %w", c.Name, err)
	}
	var injected []string
	for i := range namespaces {
		if by := injectedBy(&namespaces[i]); by != "" && slices.Contains(selectors, by) {
			injected = append(injected, namespaces[i].GetName())
		}
	}
	pods, err := c.API.ListAny(ctx, install.PodKind, "", mesh.LabelCanonicalName, maxPods)
	if err != nil {
		return nil, fmt.Errorf("%s: list pods: %w", c.Name, err)
	}
	var proxies []string
	for i := range pods {
		p := &pods[i]
		annotations := p.GetAnnotations()
		if annotations[statusOfInject] != "" && slices.Contains(revisions, annotations[labelRevision]) && !ended(p) && !own[deploymentOf(p)] {
			proxies = append(proxies, p.GetName()+"."+p.GetNamespace())
		}
	}
	var out []string
	if len(proxies) > 0 {
		out = append(out, fmt.Sprintf("leaves the proxies of %s without a control plane (%s)", output.Plural(len(proxies), "pod"), someOf(proxies)))
	}
	if len(injected) > 0 {
		out = append(out, fmt.Sprintf("ends the injection in %s (%s)", output.Plural(len(injected), "namespace"), someOf(injected)))
	}
	if len(gateways) > 0 && len(others) > 0 {
		out = append(out, fmt.Sprintf("deletes %s (%s), while %s stays: to keep them, name them with the other one first: meshctl upgrade --revision REVISION --east-west-gateway",
			output.Plural(len(gateways), "gateway"), someOf(gateways), strings.Join(others, ", ")))
	}
	return out, nil
}

// ReadsOthers reports whether the control planes of a namespace have remote secrets, as far as the caller may
// know.
func (c *Cluster) ReadsOthers(ctx context.Context, namespace string) bool {
	secrets, err := c.API.ListAny(ctx, schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, namespace, remotesecret.Selector, maxListed)
	return err == nil && len(secrets) > 0
}

// ended reports whether a pod has ended or ends.
func ended(p *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(p.Object, "status", "phase")
	return phase == "Succeeded" || phase == "Failed" || p.GetDeletionTimestamp() != nil
}

// deploymentOf returns the namespace and the name of the Deployment of a pod; the name is
// empty without one.
func deploymentOf(p *unstructured.Unstructured) string {
	name := ""
	if owner := metav1.GetControllerOf(p); owner != nil {
		if w := mesh.WorkloadOf(mesh.Workload{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name}, p.GetLabels()); w.Kind == deploymentKind.Kind {
			name = w.Name
		}
	}
	return p.GetNamespace() + "/" + name
}

// someOf lists at most five names.
func someOf(names []string) string {
	slices.Sort(names)
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// injectedBy returns the revision or tag that the labels of a namespace name, "" for none.
func injectedBy(namespace *unstructured.Unstructured) string {
	labels := namespace.GetLabels()
	if labels[labelInjection] == "enabled" {
		return mesh.DefaultRevision
	}
	if labels[labelInjection] != "" {
		return ""
	}
	return labels[labelRevision]
}
