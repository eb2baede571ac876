package source

import (
	"cmp"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Use selects the clusters in which a resource is read.
type Use uint8

// The uses of resources.
const (
	// ForMesh resources are read in every cluster: services and their endpoints.
	ForMesh Use = iota
	// ForConfiguration resources count only in the control plane's own cluster.
	ForConfiguration
	// ForCredentials resources hold the certificates of gateways. They are read only
	// on request, in all namespaces or in some.
	ForCredentials
	// ForAnalysis resources are read only for an analysis of the mesh.
	ForAnalysis
)

// Resource is a resource of a Kubernetes API that the control plane follows and that
// its role must allow.
type Resource struct {
	// Kind is the kind of the objects, KubeKind its name in the Kubernetes API.
	Kind     snapshot.Kind
	KubeKind string
	// Group is empty for the core group. Versions lists the versions that are read,
	// the preferred one first.
	Group    string
	Versions []string
	// Name is the plural, such as services.
	Name string
	Use  Use
	// Object, if not empty, is the only object that is read, in the system namespace.
	Object string
	// OwnOnly is set for a resource that counts only in the control plane's own
	// cluster, whatever its Use.
	OwnOnly bool
	// Custom is set for a resource that may not be installed.
	Custom bool
	// Optional is set for a resource that the control plane can do without.
	Optional bool
	// Unread is set for a resource without effect. It is followed only to report each
	// object; only names are read.
	Unread bool
	// Security is set for a security policy, whether it is read or not.
	Security bool
	// Without is the consequence of not reading the resource.
	Without string
}

// Verbs returns the verbs that the role of a reader needs for resources that are read.
func Verbs() []string { return []string{"get", "list", "watch"} }

// Verbs returns the verbs that the role of a reader needs for the resource.
func (r *Resource) Verbs() []string {
	if r.Unread {
		return []string{"list", "watch"}
	}
	return Verbs()
}

// GroupResource returns the full name, such as services or
// gateways.networking.istio.io.
func (r *Resource) GroupResource() string {
	if r.Group == "" {
		return r.Name
	}
	return r.Name + "." + r.Group
}

// Namespaced reports whether the objects belong to namespaces.
func (r *Resource) Namespaced() bool {
	return r.Kind != snapshot.KindNamespace && r.Kind != snapshot.KindNode && r.Kind != KindCustomResource && r.Kind != snapshot.KindInjector
}

// Of returns the resource as a control plane of a revision follows it.
func (r Resource) Of(revision string) Resource {
	if r.Kind == snapshot.KindInjectorSettings {
		r.Object = mesh.InjectorConfigMapOf(revision)
	}
	return r
}

// Change is a change of an object of a Kubernetes API.
type Change string

// The changes.
const (
	Added   Change = "add"
	Updated Change = "update"
	Deleted Change = "delete"
)

// Analyzed returns the further resources that are read for an analysis of the mesh.
func Analyzed() []Resource {
	return slices.DeleteFunc(resources(), func(r Resource) bool { return r.Use != ForAnalysis })
}

// Watched returns all resources that are followed in Kubernetes APIs: by use, the
// ones without effect last.
func Watched() []Resource {
	return slices.DeleteFunc(resources(), func(r Resource) bool { return r.Use == ForAnalysis })
}

func resources() []Resource {
	var out []Resource
	for _, k := range kinds {
		for _, r := range k.resources {
			if r.Kind == "" {
				r.Kind = k.snapshotKind()
			}
			r.KubeKind, r.Group, r.Versions, r.Name, r.Security = k.name, k.group, k.versions, k.plural, k.security()
			out = append(out, r)
		}
	}
	out = append(out, Resource{
		Kind: KindCustomResource, KubeKind: "CustomResourceDefinition", Group: groupExtensions, Versions: v1, Name: "customresourcedefinitions",
		Optional: true, Without: "resources that are installed later are found within a minute, not at once",
	})
	slices.SortStableFunc(out, func(a, b Resource) int {
		if a.Unread != b.Unread {
			if a.Unread {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.Use, b.Use)
	})
	return out
}

// KindCustomResource is the kind of CustomResourceDefinitions. Only their names are
// read.
const KindCustomResource snapshot.Kind = "CustomResourceDefinition"

// SystemNamespaceOf returns the namespace, or the default one if it is empty.
func SystemNamespaceOf(namespace string) string {
	if namespace == "" {
		return mesh.DefaultSystemNamespace
	}
	return namespace
}
