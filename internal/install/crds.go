package install

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/meshctl/meshctl/internal/server/source"
)

// shortNames returns the short names of Istio's kinds for kubectl.
func shortNames(plural string) []any {
	name := map[string]string{
		"authorizationpolicies": "ap", "destinationrules": "dr", "gateways": "gw", "peerauthentications": "pa",
		"requestauthentications": "ra", "serviceentries": "se", "telemetries": "telemetry", "virtualservices": "vs",
		"workloadentries": "we", "workloadgroups": "wg",
	}[plural]
	if name == "" {
		return nil
	}
	return []any{name}
}

// printerColumns returns the columns that kubectl get shows of Istio's kinds beside the name, as
// Istio's definitions have them.
func printerColumns(plural string) []any {
	text := func(name, path string) any { return map[string]any{"name": name, "type": "string", "jsonPath": path} }
	age := map[string]any{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
	var out []any
	switch plural {
	case "envoyfilters", "gateways", "proxyconfigs", "requestauthentications", "sidecars":
		return nil // kubectl shows the age
	case "authorizationpolicies":
		out = []any{text("Action", ".spec.action")}
	case "destinationrules":
		out = []any{text("Host", ".spec.host")}
	case "peerauthentications":
		out = []any{text("Mode", ".spec.mtls.mode")}
	case "serviceentries":
		out = []any{text("Hosts", ".spec.hosts"), text("Location", ".spec.location"), text("Resolution", ".spec.resolution")}
	case "virtualservices":
		out = []any{text("Gateways", ".spec.gateways"), text("Hosts", ".spec.hosts")}
	case "workloadentries":
		return []any{age, text("Address", ".spec.address")}
	}
	return append(out, age)
}

// storedVersion returns the version in which API servers store objects of the kind.
func storedVersion(r *source.Resource) string {
	if r.KubeKind == "Telemetry" {
		return "v1alpha1"
	}
	return r.Versions[0]
}

// addCRDs adds the CustomResourceDefinitions of Istio's kinds. They accept every field:
// the control plane and meshctl validate check the objects.
func (s *set) addCRDs() {
	var definitions []*unstructured.Unstructured
	for _, r := range source.Watched() {
		if strings.HasSuffix(r.Group, ".istio.io") && !slices.ContainsFunc(definitions, func(d *unstructured.Unstructured) bool { return d.GetName() == crdName(&r) }) {
			definitions = append(definitions, crd(&r))
		}
	}
	slices.SortFunc(definitions, func(a, b *unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	for _, d := range definitions {
		s.addTo(Shared, d)
	}
}

func crdName(r *source.Resource) string { return r.Name + "." + r.Group }

func crd(r *source.Resource) *unstructured.Unstructured {
	open := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	var versions []any
	for _, version := range slices.Sorted(slices.Values(r.Versions)) {
		v := map[string]any{
			"name": version, "served": true, "storage": version == storedVersion(r),
			"schema": map[string]any{"openAPIV3Schema": map[string]any{
				"type": "object", "properties": map[string]any{"spec": open, "status": open},
			}},
			"subresources": map[string]any{"status": map[string]any{}},
		}
		if columns := printerColumns(r.Name); columns != nil {
			v["additionalPrinterColumns"] = columns
		}
		versions = append(versions, v)
	}
	names := map[string]any{
		"kind": r.KubeKind, "listKind": r.KubeKind + "List", "plural": r.Name, "singular": strings.ToLower(r.KubeKind),
		"categories": []any{"istio-io", strings.TrimSuffix(r.Group, ".istio.io") + "-istio-io"},
	}
	if short := shortNames(r.Name); short != nil {
		names["shortNames"] = short
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": crdName(r)},
		"spec":     map[string]any{"group": r.Group, "scope": "Namespaced", "names": names, "versions": versions},
	}}
}
