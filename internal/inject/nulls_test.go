package inject

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const manyValues = `{"global": {"hub": "h", "tag": 1, "imagePullSecrets": ["s"], "multiCluster": {"clusterName": "c"},
  "proxy": {"autoInject": "enabled", "componentLogLevel": "misc:error", "readinessPeriodSeconds": 3, "startupProbe": {"enabled": true, "failureThreshold": 9},
    "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
    "seccompProfile": {"type": "RuntimeDefault"}, "lifecycle": {"preStop": {"exec": {"command": ["a"]}}}},
  "proxy_init": {"forceApplyIptables": true}},
 "sidecarInjectorWebhook": {"rewriteAppHTTPProbe": true, "templates": {"t": "spec: {}"}, "injectedAnnotations": {"a": "b"},
   "neverInjectSelector": [{"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}]},
 "pilot": {"env": {"ENABLE_NATIVE_SIDECARS": "true"}, "cni": {"enabled": false}}, "revision": "r"}`

// TestNullsAreNotSet: each Helm value, at every depth, that is null is as if it were left out.
func TestNullsAreNotSet(t *testing.T) {
	t.Parallel()
	parse := func(value any) Values {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		v, err := ParseValues(string(text), "")
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return v
	}
	var all any
	if err := json.Unmarshal([]byte(manyValues), &all); err != nil {
		t.Fatal(err)
	}
	n := 0
	var visit func(value any, path string)
	visit = func(value any, path string) {
		if list, ok := value.([]any); ok {
			for _, item := range list {
				visit(item, path+"[]")
			}
		}
		fields, _ := value.(map[string]any)
		for name, field := range fields {
			visit(field, path+"."+name)
			fields[name] = nil
			null := parse(all)
			delete(fields, name)
			if diff := cmp.Diff(parse(all), null); diff != "" {
				t.Errorf("%s.%s: null differs from no value (-none +null):\n%s", path, name, diff)
			}
			fields[name] = field
			n++
		}
	}
	visit(all, "")
	if n < 40 {
		t.Errorf("%d values were tried", n)
	}
}
