package source

import (
	"cmp"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Use says in which clusters a resource is read.
type Use uint8

// The uses of resources.
const (
	// ForMesh is what every cluster is read for: services and what is behind
	// them.
	ForMesh Use = iota
	// ForConfiguration is what counts only when it is of the own cluster.
	ForConfiguration
	// ForCredentials is what gateways are given; it is read only when asked for,
	// everywhere or in some namespaces.
	ForCredentials
)

// Resource is what is read of a Kubernetes API: what the control plane follows
// and what its role must allow.
type Resource struct {
	// Kind is that of the objects, KubeKind as the Kubernetes API calls it.
	Kind     snapshot.Kind
	KubeKind string
	// Group is empty for the core; Versions are those that are read, the
	// preferred one first.
	Group    string
	Versions []string
	// Name is the plural, such as services.
	Name string
	Use  Use
	// Object, when not empty, is the one object that is read, which is in the
	// system namespace.
	Object string
	// OwnOnly is set when it counts only when it is of the own cluster, whatever
	// the use.
	OwnOnly bool
	// Custom is set for resources that need not be installed.
	Custom bool
	// Optional is set when a mesh is served also without the right to read them.
	Optional bool
	// Unread is set for resources that have no effect. They are followed only so
	// that each object is reported; nothing but its name is read.
	Unread bool
	// Security is set for security policies, whether they are read or not.
	Security bool
	// Without says what does not work without them.
	Without string
}

// Verbs are what the role of a reader must allow for each resource that is
// read.
func Verbs() []string { return []string{"get", "list", "watch"} }

// Verbs are what the role of a reader must allow for the resource.
func (r *Resource) Verbs() []string {
	if r.Unread {
		return []string{"list", "watch"}
	}
	return Verbs()
}

// GroupResource names the resource, such as services or
// gateways.networking.istio.io.
func (r *Resource) GroupResource() string {
	if r.Group == "" {
		return r.Name
	}
	return r.Name + "." + r.Group
}

// Namespaced reports whether objects of the resource are in namespaces.
func (r *Resource) Namespaced() bool {
	return r.Kind != snapshot.KindNamespace && r.Kind != snapshot.KindNode && r.Kind != KindCustomResource
}

// Change is what happened to an object of a Kubernetes API.
type Change string

// The changes.
const (
	Added   Change = "add"
	Updated Change = "update"
	Deleted Change = "delete"
)

// Watched returns all resources that are followed in Kubernetes APIs: by use, the
// ones without effect last.
func Watched() []Resource {
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

// KindCustomResource is that of definitions of resources, of which only the
// names are read.
const KindCustomResource snapshot.Kind = "CustomResourceDefinition"

// SystemNamespaceOf is the namespace or, when it is empty, the default one.
func SystemNamespaceOf(namespace string) string {
	if namespace == "" {
		return mesh.DefaultSystemNamespace
	}
	return namespace
}
