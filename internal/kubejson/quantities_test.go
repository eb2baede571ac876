package kubejson

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestCheck: an amount that takes hours to parse is refused, wherever the decoder would find it.
func TestCheck(t *testing.T) {
	t.Parallel()
	of := func(resources string) string {
		return `{"metadata": {"labels": {"a": "1e-999999999"}}, "spec": {"unknown": {"cpu": "1e999"}, "containers": [{"name": "1e999", ` + resources + `}]}}`
	}
	for text, want := range map[string]string{
		of(`"resources": {"limits": {"cpu": "1e-999999999"}}`):                                                            "spec: containers: resources: limits: cpu: \"1e-999999999\" is not an amount",
		of(`"resources": {"limits": {"cpu": 1E+999}}`):                                                                    "cpu",
		of(`"resources": {"limits": {"cpu": "1e-999999999", "cpu": "1"}}`):                                                "cpu", // the decoder parses both
		of(`"Resources": {"LIMITS": {"cpu": "1e-999999999"}}`):                                                            "cpu",
		of(`"resources": {"limits": {"cpu": "\u0031\u0065-999999999"}}`):                                                  "cpu",
		of(`"resources": {"limits": {"cpu": "\ud800"}}, "resources": {"limits": {"cpu": "-.1e-999"}}`):                    "cpu",
		of(`"resources": {"limits": {"cpu": "` + strings.Repeat("1", 65) + `"}}`):                                         "cpu",
		of(`"env": [{"name": "E", "value": "1e999"}], "resources": {"limits": {"cpu": "1e3", "example.com/e1234": "1"}}`): "",
		`{"a": "1e999"`: "", // no JSON
		`{"spec": {"overhead": null, "containers": "1e999", "volumes": [[1]]}}`: "",
	} {
		err := Check([]byte(text), &corev1.Pod{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
