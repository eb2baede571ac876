package inject

import (
	"strings"
	"testing"
)

// TestHugeQuantities: amounts that take hours to parse are refused before, wherever a pod has them.
// Where they are no amounts, they are texts as any other.
func TestHugeQuantities(t *testing.T) {
	t.Parallel()
	values := Values{}
	values.SidecarInjectorWebhook.Templates = map[string]string{
		"own": `spec: {containers: [{name: istio-proxy, resources: {limits: {cpu: '{{ index .ObjectMeta.Annotations "cpu" | default "1" }}'}}}]}`,
	}
	i, err := New(Settings{Values: values})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ pod, want string }{
		"annotation of the injector": {`{"metadata": {"annotations": {"sidecar.istio.io/proxyCPU": "1e-999999999"}}, "spec": {"containers": [{"name": "a"}]}}`, "annotation sidecar.istio.io/proxyCPU"},
		"many digits":                {`{"metadata": {"annotations": {"sidecar.istio.io/proxyCPU": "` + strings.Repeat("1", 65) + `"}}, "spec": {"containers": [{"name": "a"}]}}`, "annotation sidecar.istio.io/proxyCPU"},
		"volume of an annotation":    {`{"metadata": {"annotations": {"sidecar.istio.io/userVolume": "{\"a\": {\"emptyDir\": {\"sizeLimit\": \"1e-999999999\", \"sizelimit\": \"1\"}}}"}}, "spec": {"containers": [{"name": "a"}]}}`, "annotation sidecar.istio.io/userVolume"},
		"template":                   {`{"metadata": {"annotations": {"inject.istio.io/templates": "sidecar,own", "cpu": "1e-999999999"}}, "spec": {"containers": [{"name": "a"}]}}`, "template own"},
		"container":                  {`{"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1e-999999999"}}}]}}`, "spec: containers: resources: requests: cpu"},
		"number":                     {`{"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": 1e-999999999}}}]}}`, "spec: containers: resources: limits: cpu"},
		"name in other letters":      {`{"spec": {"containers": [{"name": "a", "RESOURCES": {"Limits": {"cpu": "1e+999"}}}]}}`, "spec: containers: RESOURCES: Limits: cpu"},
		"volume":                     {`{"spec": {"containers": [{"name": "a"}], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1E-999999999"}}]}}`, "spec: volumes: emptyDir: sizeLimit"},
		"overhead":                   {`{"spec": {"overhead": {"cpu": "1e-999999999"}, "containers": [{"name": "a"}]}}`, "spec: overhead: cpu"},
		"no amounts":                 {`{"metadata": {"labels": {"a": "1e-999999999"}}, "spec": {"containers": [{"name": "a", "env": [{"name": "E", "value": "1e-999999999"}], "resources": {"limits": {"cpu": "1e3", "example.com/eeeee": "1"}}}]}}`, ""},
		"annotations":                {`{"metadata": {"annotations": {"a": "` + strings.Repeat("x", maxAnnotations) + `"}}, "spec": {"containers": [{"name": "a"}]}}`, "metadata.annotations: they have 262145 bytes"},
	} {
		object, err := Decode([]byte(tc.pod))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := i.Inject(t.Context(), Pod{Object: object}); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
