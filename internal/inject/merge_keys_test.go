package inject

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// schemaType is a type in the schema of server-side apply.
type schemaType struct {
	NamedType string `json:"namedType"`
	Map       *struct {
		Fields []struct {
			Name    string     `json:"name"`
			Type    schemaType `json:"type"`
			Default any        `json:"default"`
		} `json:"fields"`
		ElementType *schemaType `json:"elementType"`
	} `json:"map"`
	List *struct {
		ElementType         schemaType `json:"elementType"`
		ElementRelationship string     `json:"elementRelationship"`
		Keys                []string   `json:"keys"`
	} `json:"list"`
}

// podTypes returns the schema of server-side apply that client-go has, as YAML.
func podTypes(t testing.TB) string {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/client-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "applyconfigurations/internal/internal.go"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "`types:")
	schema, _, ok := strings.Cut(after, "`")
	if !ok {
		t.Fatal("no schema")
	}
	return "types:" + schema
}

// podSchema returns the types of the Kubernetes API by name.
func podSchema(t *testing.T) map[string]schemaType {
	t.Helper()
	var parsed struct {
		Types []struct {
			Name string `json:"name"`
			schemaType
		} `json:"types"`
	}
	if err := yaml.Unmarshal([]byte(podTypes(t)), &parsed); err != nil {
		t.Fatal(err)
	}
	out := map[string]schemaType{}
	for _, named := range parsed.Types {
		out[named.Name] = named.schemaType
	}
	return out
}

// TestMergeKeysOfKubernetes: every list of a pod that server-side apply merges by keys is merged by
// the same keys, with the same defaults, and no other list is, except sysctls.
func TestMergeKeysOfKubernetes(t *testing.T) {
	t.Parallel()
	types := podSchema(t)
	want, defaults := map[string][]string{"sysctls": {"name"}}, map[string]string{}
	seen := map[string]bool{}
	var visit func(field string, in schemaType)
	visit = func(field string, in schemaType) {
		if in.NamedType != "" {
			if seen[in.NamedType] {
				return
			}
			seen[in.NamedType] = true
			in = types[in.NamedType]
		}
		if in.Map != nil {
			for _, f := range in.Map.Fields {
				visit(f.Name, f.Type)
			}
			if in.Map.ElementType != nil {
				visit("", *in.Map.ElementType)
			}
		}
		if in.List == nil {
			return
		}
		visit("", in.List.ElementType)
		if len(in.List.Keys) == 0 {
			return
		}
		if other, ok := want[field]; ok && !slices.Equal(other, in.List.Keys) {
			t.Fatalf("lists with the name %s have the keys %v and %v: merge by their types", field, other, in.List.Keys)
		}
		want[field] = in.List.Keys
		for _, f := range types[in.List.ElementType.NamedType].Map.Fields {
			if text, ok := f.Default.(string); ok && text != "" && slices.Contains(in.List.Keys, f.Name) {
				defaults[f.Name] = text
			}
		}
	}
	visit("", schemaType{NamedType: "io.k8s.api.core.v1.PodSpec"})
	visit("", schemaType{NamedType: "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"})
	if diff := cmp.Diff(want, listKeys); diff != "" {
		t.Errorf("keys of lists (-Kubernetes +own):\n%s", diff)
	}
	if diff := cmp.Diff(defaults, keyDefaults); diff != "" {
		t.Errorf("defaults of keys (-Kubernetes +own):\n%s", diff)
	}
}

// TestMergeByAllKeys: items that differ in one key stay beside each other.
func TestMergeByAllKeys(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ object, patch, want string }{
		{
			`{"ports": [{"containerPort": 8443, "protocol": "UDP", "name": "quic"}]}`, `{"ports": [{"containerPort": 8443, "name": "https"}]}`,
			`{"ports": [{"containerPort": 8443, "protocol": "UDP", "name": "quic"}, {"containerPort": 8443, "name": "https"}]}`,
		},
		{
			`{"ports": [{"containerPort": 8443}]}`, `{"ports": [{"containerPort": 8443, "protocol": "TCP", "name": "https"}]}`,
			`{"ports": [{"containerPort": 8443, "protocol": "TCP", "name": "https"}]}`,
		},
		{
			`{"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1}]}`,
			`{"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 2}]}`,
			`{"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1}, {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 2}]}`,
		},
		{`{"finalizers": ["a"]}`, `{"finalizers": ["b", "a"]}`, `{"finalizers": ["a", "b"]}`},
		{`{"schedulingGates": [{"name": "a"}]}`, `{"schedulingGates": [{"name": "b"}]}`, `{"schedulingGates": [{"name": "a"}, {"name": "b"}]}`},
		{`{"tolerations": [{"key": "a"}]}`, `{"tolerations": [{"key": "b"}]}`, `{"tolerations": [{"key": "b"}]}`},
	} {
		var object, patch, want map[string]any
		for _, part := range []struct {
			text string
			into *map[string]any
		}{{tt.object, &object}, {tt.patch, &patch}, {tt.want, &want}} {
			if err := json.Unmarshal([]byte(part.text), part.into); err != nil {
				t.Fatal(err)
			}
		}
		if merge(object, patch); !cmp.Equal(want, object) {
			t.Errorf("%s and %s (-want +got):\n%s", tt.object, tt.patch, cmp.Diff(want, object))
		}
	}
}
