package inject

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// fuzzedLists are the lists of FuzzMerge, with fields of their items. The values of each field are few,
// so that items of both objects meet.
var fuzzedLists = []struct {
	name   string
	fields []string // the last one is no key
	values [][]any
}{
	{"ports", []string{"containerPort", "protocol", "name"}, [][]any{{int64(80), int64(8443)}, {nil, "TCP", "UDP"}, {nil, "a", "b"}}},
	{"volumeMounts", []string{"mountPath", "subPath"}, [][]any{{"/a", "/b"}, {nil, "x", "y"}}},
	{"volumeDevices", []string{"devicePath", "name"}, [][]any{{"/a", "/b"}, {"x", "y"}}},
	{"topologySpreadConstraints", []string{"topologyKey", "whenUnsatisfiable", "maxSkew"}, [][]any{{"zone", "node"}, {"DoNotSchedule", "ScheduleAnyway"}, {int64(1), int64(2)}}},
	{"hostAliases", []string{"ip", "hostnames"}, [][]any{{"1.1.1.1", "2.2.2.2"}, {nil, []any{"a"}}}},
	{"imagePullSecrets", []string{"name"}, [][]any{{"a", "b"}}},
	{"tolerations", []string{"key", "value"}, [][]any{{"a", "b"}, {nil, "x", "y"}}},
	{"schedulingGates", []string{"name"}, [][]any{{"a", "b"}}},
	{"resourceClaims", []string{"name", "resourceClaimName"}, [][]any{{"a", "b"}, {nil, "x", "y"}}},
}

// fuzzedPod makes the spec of a pod with one container of bytes. It returns false if a list has two
// items with the same keys, which Kubernetes refuses.
func fuzzedPod(data []byte, distinct func(list string, items []any) bool) (spec map[string]any, ok bool) {
	container := map[string]any{"name": "app"}
	spec = map[string]any{"containers": []any{container}}
	for len(data) > 0 {
		list := fuzzedLists[int(data[0])%len(fuzzedLists)]
		data = data[1:]
		item := map[string]any{}
		for i, field := range list.fields {
			if len(data) == 0 {
				return spec, true
			}
			if v := list.values[i][int(data[0])%len(list.values[i])]; v != nil {
				item[field] = v
			}
			data = data[1:]
		}
		owner := spec
		if strings.HasPrefix(list.name, "volume") || list.name == "ports" {
			owner = container
		}
		items, _ := owner[list.name].([]any)
		if items = append(items, item); !distinct(list.name, items) {
			return nil, false
		}
		owner[list.name] = items
	}
	return spec, true
}

// FuzzMerge: the specs of two pods are merged as by Kubernetes' server-side apply, whose library does
// the same here.
func FuzzMerge(f *testing.F) {
	parser, err := typed.NewParser(typed.YAMLObject(podTypes(f)))
	if err != nil {
		f.Fatal(err)
	}
	of := parser.Type("io.k8s.api.core.v1.PodSpec")
	for i := range fuzzedLists {
		f.Add([]byte{byte(i), 0, 0, 0}, []byte{byte(i), 0, 1, 1})
		f.Add([]byte{byte(i), 0, 0, 0, byte(i), 1, 1, 1}, []byte{byte(i), 1, 0, 0})
	}
	f.Add([]byte{0, 0, 0, 1}, []byte{0, 0, 1, 2}) // the default of a key
	f.Add([]byte{0, 1, 0, 1}, []byte{0, 1, 2, 2}) // another protocol
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if len(a)+len(b) > 128 {
			return // more of the same
		}
		distinct := func(list string, items []any) bool {
			seen := map[string]bool{}
			for _, item := range items {
				id := idOf(item.(map[string]any), listKeys[list])
				if id != "" && seen[id] {
					return false
				}
				seen[id] = true
			}
			return true
		}
		object, ok := fuzzedPod(a, distinct)
		patch, fits := fuzzedPod(b, distinct)
		if !ok || !fits {
			return
		}
		x, err := of.FromUnstructured(object)
		if err != nil {
			t.Fatal(err)
		}
		y, err := of.FromUnstructured(patch)
		if err != nil {
			t.Fatal(err)
		}
		merged, err := x.Merge(y)
		if err != nil {
			t.Fatal(err)
		}
		want := merged.AsValue().Unstructured()
		merge(object, patch)
		if diff := cmp.Diff(sortedLists(want), sortedLists(object)); diff != "" {
			t.Errorf("(-Kubernetes +own):\n%s", diff)
		}
	})
}

// sortedLists returns the items of an object by their texts: their order is the order of the object
// here, and that of the patch in Kubernetes.
func sortedLists(v any) map[string]bool {
	out := map[string]bool{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, field := range v {
				if list, ok := field.([]any); ok && name == "containers" {
					walk(path+".app", list[0])
				} else {
					walk(path+"."+name, field)
				}
			}
		case []any:
			for _, item := range v {
				out[fmt.Sprint(path, item)] = true
			}
		default:
			out[fmt.Sprint(path, v)] = true
		}
	}
	walk("", v)
	return out
}
