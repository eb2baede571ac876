package source

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/meshctl/meshctl/internal/clustersettings"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Groups of other APIs that are read.
const (
	groupGatewayAPI = "gateway.networking.k8s.io"
	groupExtensions = "apiextensions.k8s.io"
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

// Watched are all resources that are followed in Kubernetes APIs.
func Watched() []Resource { return append(readResources(), unreadResources()...) }

// unreadResources are those of the kinds without effect.
func unreadResources() []Resource {
	var out []Resource
	for i := range apiKinds {
		if k := &apiKinds[i]; k.unread() {
			out = append(out, Resource{
				Kind: snapshotKind(k.Kind), KubeKind: k.Kind, Group: k.Group, Versions: k.Versions, Name: k.Plural,
				Use: ForConfiguration, Custom: true, Optional: true, Unread: true, Security: k.security(),
				Without: "it is not reported whether there is any " + k.Kind + ", which has no effect",
			})
		}
	}
	return out
}

func readResources() []Resource {
	v1 := []string{"v1"}
	istio := []string{"v1", "v1beta1", "v1alpha3"}
	config := func(group string, kind snapshot.Kind, name string, versions []string) Resource {
		return Resource{
			Kind: kind, KubeKind: string(kind), Group: group, Versions: versions, Name: name,
			Use: ForConfiguration, Custom: true, Security: group == groupSecurity, Without: "no " + string(kind) + " has an effect",
		}
	}
	return []Resource{
		{
			Kind: snapshot.KindNamespace, KubeKind: "Namespace", Versions: v1, Name: "namespaces",
			Without: "the cluster's network is not known",
		},
		{Kind: snapshot.KindService, KubeKind: "Service", Versions: v1, Name: "services", Without: "the cluster has no services"},
		{
			Kind: snapshot.KindEndpointSlice, KubeKind: "EndpointSlice", Group: discoveryv1.GroupName, Versions: v1, Name: "endpointslices",
			Without: "services have no endpoints",
		},
		{
			Kind: snapshot.KindPod, KubeKind: "Pod", Versions: v1, Name: "pods",
			Without: "endpoints have no identities and no mutual TLS",
		},
		{
			Kind: snapshot.KindNode, KubeKind: "Node", Versions: v1, Name: "nodes", Optional: true,
			Without: "endpoints have no localities",
		},
		{
			Kind: snapshot.KindKubeGateway, KubeKind: "Gateway", Group: groupGatewayAPI, Versions: []string{"v1", "v1beta1"}, Name: "gateways",
			Custom: true, Optional: true, Without: "Gateways of the Kubernetes API are no gateways of networks",
		},
		{
			Kind: snapshot.KindWorkloadEntry, KubeKind: "WorkloadEntry", Group: groupNetworking, Versions: istio, Name: "workloadentries",
			Custom: true, Optional: true, Without: "workloads outside of Kubernetes are no endpoints",
		},
		{
			Kind: KindCustomResource, KubeKind: "CustomResourceDefinition", Group: groupExtensions, Versions: v1, Name: "customresourcedefinitions",
			Optional: true, Without: "resources that are installed later are found within a minute, not at once",
		},
		{
			Kind: snapshot.KindMeshSettings, KubeKind: "ConfigMap", Versions: v1, Name: "configmaps", Use: ForConfiguration, Object: meshConfigMap,
			Without: "MeshConfig is not known",
		},
		{
			Kind: snapshot.KindClusterSettings, KubeKind: "ConfigMap", Versions: v1, Name: "configmaps", Use: ForConfiguration, Object: clustersettings.ConfigMap,
			Without: "no cluster is drained or weighed",
		},
		config(groupNetworking, snapshot.KindGateway, "gateways", istio),
		config(groupNetworking, snapshot.KindSidecar, "sidecars", istio),
		config(groupNetworking, snapshot.KindDestinationRule, "destinationrules", istio),
		config(groupNetworking, snapshot.KindVirtualService, "virtualservices", istio),
		config(groupNetworking, snapshot.KindServiceEntry, "serviceentries", istio),
		config(groupNetworking, snapshot.KindEnvoyFilter, "envoyfilters", []string{"v1alpha3"}),
		config(groupSecurity, snapshot.KindPeerAuthentication, "peerauthentications", istio),
		{
			Kind: snapshot.KindSecret, KubeKind: "Secret", Versions: v1, Name: "secrets", Use: ForCredentials, Optional: true,
			Without: "gateways are given no certificates",
		},
		{
			Kind: snapshot.KindConfigMap, KubeKind: "ConfigMap", Versions: v1, Name: "configmaps", Use: ForCredentials, OwnOnly: true, Optional: true,
			Without: "proxies are given no CA certificates of ConfigMaps",
		},
	}
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
