//go:build !race

package fields

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"istio.io/api/annotation"

	"github.com/meshctl/meshctl/internal/inject"
)

// annotationValues holds valid values of annotations, by name. Others get "true".
var annotationValues = map[string]string{
	"inject.istio.io/templates":                             "gateway",
	"istio.io/reroute-virtual-interfaces":                   "net1",
	"networking.istio.io/exportTo":                          ".",
	"networking.istio.io/traffic-distribution":              "PreferClose",
	"prometheus.istio.io/merge-metrics":                     "false",
	"proxy.istio.io/config":                                 "concurrency: 3",
	"readiness.status.sidecar.istio.io/failureThreshold":    "9",
	"readiness.status.sidecar.istio.io/initialDelaySeconds": "9",
	"readiness.status.sidecar.istio.io/periodSeconds":       "9",
	"sidecar.istio.io/componentLogLevel":                    "rbac:debug",
	"sidecar.istio.io/discoveryAddress":                     "istiod.example:15012",
	"sidecar.istio.io/extraStatTags":                        "a",
	"sidecar.istio.io/inject":                               "false",
	"sidecar.istio.io/interceptionMode":                     "NONE",
	"sidecar.istio.io/logLevel":                             "debug",
	"sidecar.istio.io/nativeSidecar":                        "false",
	"sidecar.istio.io/proxyCPU":                             "3",
	"sidecar.istio.io/proxyCPULimit":                        "3",
	"sidecar.istio.io/proxyImage":                           "other:1",
	"sidecar.istio.io/proxyMemory":                          "3Gi",
	"sidecar.istio.io/proxyMemoryLimit":                     "3Gi",
	"sidecar.istio.io/rewriteAppHTTPProbers":                "false",
	"sidecar.istio.io/statsInclusionPrefixes":               "a",
	"sidecar.istio.io/statsInclusionRegexps":                "a",
	"sidecar.istio.io/statsInclusionSuffixes":               "a",
	"sidecar.istio.io/userVolume":                           `{"a": {"emptyDir": {}}}`,
	"sidecar.istio.io/userVolumeMount":                      `{"a": {"mountPath": "/a"}}`,
	"status.sidecar.istio.io/port":                          "15120",
	"traffic.sidecar.istio.io/excludeInboundPorts":          "99",
	"traffic.sidecar.istio.io/excludeInterfaces":            "net1",
	"traffic.sidecar.istio.io/excludeOutboundIPRanges":      "10.0.0.0/8",
	"traffic.sidecar.istio.io/excludeOutboundPorts":         "99",
	"traffic.sidecar.istio.io/includeInboundPorts":          "99",
	"traffic.sidecar.istio.io/includeOutboundIPRanges":      "10.0.0.0/8",
	"traffic.sidecar.istio.io/includeOutboundPorts":         "99",
	"traffic.sidecar.istio.io/kubevirtInterfaces":           "net1",
	"traffic.istio.io/nodeSelector":                         `{"kubernetes.io/hostname": "node-a"}`,
	"galley.istio.io/analyze-suppress":                      "*",
}

// TestNoAnnotationIsSilent: each annotation of Istio's API has an effect on injection or on the
// configuration of proxies, or a warning or a finding names it. The golden file has the result for each
// kind of object.
func TestNoAnnotationIsSilent(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, a := range annotation.AllResourceAnnotations() {
		value := annotationValues[a.Name]
		if value == "" {
			value = "true"
		}
		for _, kind := range a.Resources {
			got := onObject
			if kind == annotation.Pod {
				got = func(t *testing.T, _, name, value string) string { return onPod(t, name, value) }
			}
			result := cmp.Or(got(t, kind.String(), a.Name, value), annotationsElsewhere[a.Name])
			if result == "" {
				t.Errorf("%s of %s: silent", a.Name, kind)
			}
			lines = append(lines, fmt.Sprintf("%s of %s: %s", a.Name, kind, result))
		}
	}
	slices.Sort(lines)
	golden(t, filepath.Join("testdata", "annotations.out.txt"), strings.Join(lines, "\n")+"\n")
}

// annotationsElsewhere explains annotations that are not for users of injection or configuration.
var annotationsElsewhere = map[string]string{
	"ambient.istio.io/redirection":              "written by Istio's CNI plugin",
	"ambient.istio.io/waypoint-inbound-binding": "objects of the kind are not read",
	"gateway.istio.io/controller-version":       "written by Istio's control plane",
	"istio.io/autoRegistrationGroup":            "internal/server/autoregister TestRegistration",
	"istio.io/connectedAt":                      "internal/server/autoregister TestRegistration",
	"istio.io/disconnectedAt":                   "internal/server/autoregister TestRegistration",
	"istio.io/rev":                              "written by the injector",
	"istio.io/workloadController":               "internal/server/autoregister TestRegistration",
	"kubernetes.io/ingress.class":               "objects of the kind are not read",
	"sidecar.istio.io/extraStatTags":            "internal/agent/config TestStatTags",
	"topology.istio.io/controlPlaneClusters":    "internal/server/publish TestRemoteClusterInvites",
}

// onPod returns the result of an annotation of a pod.
func onPod(t *testing.T, name, value string) string {
	t.Helper()
	injector, err := inject.New(inject.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	injected := func(annotations map[string]any) (string, []string, error) {
		made, err := injector.Inject(t.Context(), pod(annotations))
		if metadata, ok := made.Object["metadata"].(map[string]any); ok {
			own, _ := metadata["annotations"].(map[string]any)
			own = maps.Clone(own)
			delete(own, name)
			metadata["annotations"] = own
		}
		text, failed := json.Marshal(made.Object)
		if failed != nil {
			t.Fatal(failed)
		}
		return string(text), made.Warnings, err
	}
	before, warnings, err := injected(map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	after, more, err := injected(map[string]any{name: value})
	for _, w := range more {
		if !slices.Contains(warnings, w) && strings.Contains(w, name) {
			return "reported: " + w
		}
	}
	switch {
	case err != nil:
		return "refused: " + err.Error()
	case before != after:
		return "changes the pod"
	}
	return onObject(t, "Pod", name, value)
}

// onObject returns the result of an annotation of an object of a kind in the mesh.
func onObject(t *testing.T, kind, name, value string) string {
	t.Helper()
	objects := objectsOf(t, "testdata/annotated.yaml")
	objects = append(objects, objectsOf(t, "../../internal/server/render/testdata/base.yaml")...)
	if kind == annotation.Any.String() {
		kind = "Telemetry"
	}
	i := slices.IndexFunc(objects, func(o object) bool { return o.kind() == kind })
	if i < 0 {
		t.Errorf("testdata/annotated.yaml has no %s", kind)
		return ""
	}
	before := resultOf(t, objects)
	annotated, _ := clone(map[string]any(objects[i])).(map[string]any)
	metadata, _ := annotated["metadata"].(map[string]any)
	metadata["annotations"] = map[string]any{name: value}
	after := resultOf(t, append(append(slices.Clone(objects[:i]), annotated), objects[i+1:]...))
	w := &walk{T: t}
	if changed := w.changedIn(before, after); changed != "" {
		return "changes " + changed
	}
	was := before.problems(t)
	for _, p := range after.problems(t) {
		if !slices.Contains(was, p) && strings.Contains(p.field+p.text, name) {
			return "reported: " + p.text
		}
	}
	if len(after.problems(t)) < len(was) {
		return "suppresses findings"
	}
	return ""
}
