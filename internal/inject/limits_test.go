package inject

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
)

// namedItems returns items with different names.
func namedItems(n int) (out []any) {
	for i := range n {
		out = append(out, map[string]any{"name": fmt.Sprint("n", i)})
	}
	return out
}

// TestLimits: pods with too many items are refused with a reason, and pods at the limits are injected.
func TestLimits(t *testing.T) {
	t.Parallel()
	i, err := New(Settings{})
	if err != nil {
		t.Fatal(err)
	}
	var deep any = "x"
	for range maxDepth {
		deep = []any{deep}
	}
	templates := func(n int) map[string]any {
		return map[string]any{"annotations": map[string]any{mesh.AnnotationTemplates: strings.Repeat("sidecar,", n)}}
	}
	app := map[string]any{"name": "app"}
	proxy := func(env int) map[string]any { return map[string]any{"name": proxyContainer, "env": namedItems(env)} }
	var full []any
	for n := range maxContainers {
		full = append(full, map[string]any{"name": fmt.Sprint("c", n), "env": namedItems(maxValues / maxContainers)})
	}
	for name, tc := range map[string]struct {
		metadata, spec map[string]any
		want           string
	}{
		"containers at the limit": {nil, map[string]any{"containers": namedItems(maxContainers), "volumes": namedItems(maxListItems)}, ""},
		"own proxy at the limit":  {nil, map[string]any{"containers": []any{app, proxy(maxListItems)}}, ""},
		"templates at the limit":  {templates(maxTemplates), map[string]any{"containers": []any{app}}, ""},
		"containers":              {nil, map[string]any{"containers": namedItems(maxContainers + 1)}, "spec.containers: the pod has more than 1000 containers"},
		"init containers":         {nil, map[string]any{"initContainers": namedItems(maxContainers), "containers": []any{app}}, "spec.containers: the pod has more than 1000 containers"},
		"two of a name":           {nil, map[string]any{"initContainers": []any{app}, "containers": []any{app}}, `spec.containers: two containers have the name "app"`},
		"volumes":                 {nil, map[string]any{"containers": []any{app}, "volumes": namedItems(maxListItems + 1)}, `field "volumes" has 10001 items: want at most 10000`},
		"env":                     {nil, map[string]any{"containers": []any{app, proxy(maxListItems + 1)}}, `field "env" has 10001 items`},
		"values":                  {nil, map[string]any{"containers": full}, "the pod has more than 100000 values"},
		"levels":                  {nil, map[string]any{"containers": []any{app}, "deep": deep}, "levels"},
		"templates":               {templates(maxTemplates + 1), map[string]any{"containers": []any{app}}, "names 51 templates: want at most 50"},
	} {
		pod := map[string]any{"spec": tc.spec}
		if tc.metadata != nil {
			pod["metadata"] = tc.metadata
		}
		if _, err := i.Inject(t.Context(), Pod{Object: pod}); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := i.Inject(ctx, Pod{Object: map[string]any{"spec": map[string]any{"containers": []any{app}}}}); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended request: %v", err)
	}
}

// TestMergeList: items of the patch replace, join or delete the first item of their name.
func TestMergeList(t *testing.T) {
	t.Parallel()
	item := func(name string, value int) map[string]any { return map[string]any{"name": name, "value": value} }
	gone := func(name string) map[string]any { return map[string]any{"name": name, "$patch": "delete"} }
	for name, tc := range map[string]struct {
		field       string
		have, patch []any
		want        string
	}{
		"new":              {"env", []any{item("a", 1)}, []any{item("b", 2), item("b", 3)}, "[map[name:a value:1] map[name:b value:3]]"},
		"first of two":     {"env", []any{item("a", 1), item("a", 2)}, []any{item("a", 3)}, "[map[name:a value:3] map[name:a value:2]]"},
		"delete":           {"env", []any{item("a", 1), item("b", 2), item("a", 3)}, []any{gone("a"), gone("c"), item("a", 4)}, "[map[name:b value:2] map[name:a value:4]]"},
		"delete and again": {"env", []any{item("a", 1)}, []any{gone("a"), item("a", 2)}, "[map[name:a value:2]]"},
		"merge":            {"containers", []any{map[string]any{"name": "a", "image": "i"}}, []any{item("a", 1)}, "[map[image:i name:a value:1]]"},
		"no identity":      {"args", []any{"x"}, []any{"y"}, "[y]"},
		"no name":          {"env", []any{map[string]any{"value": 1}}, []any{map[string]any{"value": 2}}, "[map[value:1] map[value:2]]"},
		"numbers":          {"ports", []any{map[string]any{"containerPort": 1.0}}, []any{map[string]any{"containerPort": 1, "name": "p"}}, "[map[containerPort:1 name:p]]"},
	} {
		if got := fmt.Sprint(mergeList(tc.field, tc.have, tc.patch)); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
