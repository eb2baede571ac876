package source

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// withoutEffect returns a fault for each part of the spec without effect. If the kind
// has no effect, it returns one fault for the whole object.
func (k *kind) withoutEffect(spec proto.Message) []*fields.Error {
	if k.support == fields.NoEffect {
		return []*fields.Error{fields.WithoutEffect("", k.meaning)}
	}
	var out []*fields.Error
	rows := make(map[string]*fields.Field, len(k.fields))
	for i := range k.fields {
		rows[k.fields[i].Path] = &k.fields[i]
	}
	fields.EachSet(spec.ProtoReflect(), "", "spec", func(path, field string, value proto.Message) (deeper bool) {
		row := rows[path]
		switch {
		case row == nil:
			return false
		case row.Support == fields.NoEffect, row.Lacks != nil && value != nil && row.Lacks(value):
			out = append(out, fields.WithoutEffect(field, row.Meaning))
			return false
		}
		return row.Support == fields.Partly
	})
	return out
}

// otherCoreKinds lists the kinds of core/v1 that do not matter to a mesh.
var otherCoreKinds = strings.Fields(`Binding ComponentStatus Endpoints Event LimitRange List
	PersistentVolume PersistentVolumeClaim PodTemplate ReplicationController ResourceQuota`)

// Unread returns the result for an object of a resource that has no effect.
func (c *Converter) Unread(r *Resource, namespace, name string) Result {
	return unreadResult(snapshot.Key{Kind: r.Kind, Cluster: c.Cluster, Namespace: namespace, Name: name}, r.Group)
}

// unreadResult returns the result for an object of a kind that is not read. An object
// of Istio, of the Gateway API, or of a kind that core/v1 does not have was likely
// meant to have an effect: it gets a warning.
func unreadResult(key snapshot.Key, group string) Result {
	r := Result{Key: key, Skipped: true}
	kind := string(key.Kind)
	k := findKind(group, kind)
	if r.Key.Namespace == "" && (k != nil || isIstioGroup(group)) {
		r.Key.Namespace = metav1.NamespaceDefault
	}
	if k != nil {
		if !k.unreported {
			r.Security, r.Shared = k.security(), k.shared()
			r.Warnings = []*fields.Error{fields.WithoutEffect("", k.meaning)}
		}
		return r
	}
	meant, hint := kindHint(group, kind)
	if hint == "" && !isIstioGroup(group) && (group != "" || slices.Contains(otherCoreKinds, kind)) {
		return r
	}
	r.Security = group == groupSecurity || slices.Contains(namesOfKinds(groupSecurity), meant)
	r.Warnings = []*fields.Error{fields.Faultf("kind", "%s is not read%s", kind, hint)}
	return r
}

// kindHint returns the likely meaning of a misspelt kind or of a kind with a wrong
// group, and a hint for the error; both are empty if there is none.
func kindHint(group, kind string) (meant, hint string) {
	if near := output.NearestWord(kind, namesOfKinds(group)); near != "" {
		return near, fmt.Sprintf(", did you mean %s?", near)
	}
	if !isIstioGroup(group) {
		return "", ""
	}
	for _, k := range kinds {
		if k.name == kind && isIstioGroup(k.group) {
			return kind, fmt.Sprintf(", did you mean apiVersion %s/%s?", k.group, k.versions[0])
		}
	}
	return "", ""
}
