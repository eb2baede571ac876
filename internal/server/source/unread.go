package source

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// kubeKinds are the kinds of Kubernetes that newObject knows, by group.
var kubeKinds = map[string][]string{
	"":                    {"Namespace", "Node", "Pod", "Service", "ConfigMap", "Secret", "ServiceAccount"},
	discoveryv1.GroupName: {"EndpointSlice"},
}

// otherCoreKinds are the kinds of core/v1 that have nothing to do with a mesh.
var otherCoreKinds = strings.Fields(`Binding ComponentStatus Endpoints Event LimitRange List
	PersistentVolume PersistentVolumeClaim PodTemplate ReplicationController ResourceQuota`)

// Unread returns the result for an object of a resource that has no effect.
func (c *Converter) Unread(r *Resource, namespace, name string) Result {
	return unread(snapshot.Key{Kind: r.Kind, Cluster: c.Cluster, Namespace: namespace, Name: name}, r.Group)
}

// unread is the result for an object of a kind that is not read. A kind of
// Istio or of the Gateway API, and one that core/v1 does not have, was meant to
// have an effect: it gets a warning.
func unread(key snapshot.Key, group string) Result {
	r := Result{Key: key, Skipped: true}
	kind := string(key.Kind)
	k := findKind(group, kind)
	if r.Key.Namespace == "" && (k != nil || isIstioGroup(group)) {
		r.Key.Namespace = metav1.NamespaceDefault
	}
	if k != nil {
		if !k.Unreported {
			r.Security, r.Shared = k.security(), k.shared()
			r.Warnings = []*FieldError{noEffect("", k.Meaning)}
		}
		return r
	}
	meant, hint := kindHint(group, kind)
	if hint == "" && !isIstioGroup(group) && (group != "" || slices.Contains(otherCoreKinds, kind)) {
		return r
	}
	r.Security = group == groupSecurity || slices.Contains(kindsOf(groupSecurity), meant)
	r.Warnings = []*FieldError{faultf("kind", "%s is not read%s", kind, hint)}
	return r
}

// kindHint suggests what a misspelt kind, or a kind of another group, was
// meant to be; empty when it looks like neither.
func kindHint(group, kind string) (meant, hint string) {
	if near := output.NearestWord(kind, append(kindsOf(group), kubeKinds[group]...)); near != "" {
		return near, fmt.Sprintf(", did you mean %s?", near)
	}
	if !isIstioGroup(group) {
		return "", ""
	}
	for i := range apiKinds {
		if k := &apiKinds[i]; k.Kind == kind && isIstioGroup(k.Group) {
			return kind, fmt.Sprintf(", did you mean apiVersion %s/%s?", k.Group, k.Versions[0])
		}
	}
	return "", ""
}
