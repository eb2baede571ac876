package install

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// RootConfigMap is the name of the ConfigMap with the roots of the mesh, which the control
// plane writes to every namespace.
const RootConfigMap = "istio-ca-root-cert"

// ControlPlanePods selects the pods of all control planes.
const ControlPlanePods = "app=" + istiod

// PodKind is the kind of pods.
var PodKind = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}

// Kinds returns the kinds of the objects of installations, also of earlier versions, in
// the order to delete: webhooks before the control plane that serves them, accounts after
// the pods that use them.
func Kinds() []schema.GroupVersionKind {
	kind := func(group, version string, kinds ...string) []schema.GroupVersionKind {
		var out []schema.GroupVersionKind
		for _, k := range kinds {
			out = append(out, schema.GroupVersionKind{Group: group, Version: version, Kind: k})
		}
		return out
	}
	var out []schema.GroupVersionKind
	out = append(out, kind("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")...)
	out = append(out, kind("networking.istio.io", "v1", "VirtualService", "Gateway")...)
	out = append(out, kind("autoscaling", "v2", "HorizontalPodAutoscaler")...)
	out = append(out, kind("apps", "v1", "Deployment")...)
	out = append(out, kind("policy", "v1", "PodDisruptionBudget")...)
	out = append(out, kind("discovery.k8s.io", "v1", "EndpointSlice")...)
	out = append(out, kind("", "v1", "Service", "ConfigMap")...)
	out = append(out, kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "Role", "ClusterRoleBinding", "ClusterRole")...)
	out = append(out, kind("", "v1", "ServiceAccount")...)
	out = append(out, kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition")...)
	return append(out, kind("", "v1", "Namespace")...)
}

// KindOf returns the kind that a CustomResourceDefinition defines, in its stored version.
func KindOf(definition *unstructured.Unstructured) schema.GroupVersionKind {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	out := schema.GroupVersionKind{Group: group, Kind: kind}
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if version["storage"] == true {
			out.Version, _ = version["name"].(string)
		}
	}
	return out
}
