package apply

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

// Orphans returns what in the cluster uses a revision that has no control plane: running pods with
// proxies, and namespaces whose pods none injects. running has the revisions of control planes that
// answer, which may run outside of the cluster. It returns nothing if another cluster has the control
// plane.
func (c *Cluster) Orphans(ctx context.Context, running []string) ([]string, error) {
	injectors, err := c.API.ListAny(ctx, mutatingKind, "", labelRevision, maxListed)
	if err != nil {
		return nil, fmt.Errorf("%s: list webhook configurations: %w", c.Name, err)
	}
	planes, err := c.API.ListAny(ctx, install.PodKind, "", install.ControlPlanePods, maxListed)
	if err != nil {
		return nil, fmt.Errorf("%s: list control planes: %w", c.Name, err)
	}
	revisions := slices.Clone(running) // with a control plane
	for i := range planes {
		if !ended(&planes[i]) {
			revisions = append(revisions, cmp.Or(planes[i].GetLabels()[labelRevision], mesh.DefaultRevision))
		}
	}
	if len(revisions) == 0 && len(injectors) > 0 {
		return nil, nil // another cluster has the control plane, or it starts
	}
	selectors := slices.Clone(revisions) // values of istio.io/rev that inject: these, and their tags
	for i := range injectors {
		labels := injectors[i].GetLabels()
		if tag := labels[labelTag]; tag != "" && slices.Contains(revisions, labels[labelRevision]) {
			selectors = append(selectors, tag)
		}
	}
	namespaces, err := c.API.ListAny(ctx, namespaceKind, "", "", maxListed)
	if err != nil {
		return nil, fmt.Errorf("%s: list namespaces: %w", c.Name, err)
	}
	var injected []string
	for i := range namespaces {
		if by := injectedBy(&namespaces[i]); by != "" && !slices.Contains(selectors, by) {
			injected = append(injected, namespaces[i].GetName())
		}
	}
	var proxies, missing []string
	options := metav1.ListOptions{LabelSelector: mesh.LabelCanonicalName, FieldSelector: "status.phase=Running"}
	err = c.API.EachMetadata(ctx, kube.ResourceOf(install.PodKind), options, func(p *metav1.PartialObjectMetadata) {
		revision := p.Annotations[labelRevision]
		if p.Annotations[statusOfInject] != "" && revision != "" && !slices.Contains(revisions, revision) && p.DeletionTimestamp == nil {
			proxies = append(proxies, p.Name+"."+p.Namespace)
			if !slices.Contains(missing, revision) {
				missing = append(missing, revision)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%s: list pods: %w", c.Name, err)
	}
	var out []string
	if len(proxies) > 0 {
		slices.Sort(missing)
		out = append(out, fmt.Sprintf("%s with proxies of revision %s (%s)", output.Plural(len(proxies), "pod"), strings.Join(missing, ", "), someOf(proxies)))
	}
	if len(injected) > 0 {
		out = append(out, fmt.Sprintf("%s whose label asks for injection (%s)", output.Plural(len(injected), "namespace"), someOf(injected)))
	}
	return out, nil
}
