package clustersettings

import (
	"reflect"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
)

func TestParse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		want       mesh.ClusterSettings
		err        string
	}{
		{"empty", "", mesh.ClusterSettings{}, ""},
		{"nothing", "clusters: {}\n", mesh.ClusterSettings{}, ""},
		{
			"all", "clusters:\n  c2: {drain: true, weight: 50, onLost: drop, allow: [exec]}\n  c3: {}\n",
			mesh.ClusterSettings{"c2": {Drain: true, Weight: 50, OnLost: mesh.Drop, Allow: []string{"exec"}}, "c3": {}},
			"",
		},
		{"unknown field", "clusters:\n  c2: {drained: true}\n", nil, `unknown field "drained"`},
		{"no mapping", "- c2\n", nil, "want clusters:"},
		{"weight", "clusters:\n  c2: {weight: 1001}\n", nil, `cluster "c2": weight 1001: want 1 to 1000 percent`},
		{"negative weight", "clusters:\n  c2: {weight: -1}\n", nil, "cannot unmarshal number -1"},
		{"on lost", "clusters:\n  c2: {onLost: forget}\n", nil, `onLost "forget": want keep, demote or drop`},
		{"name", "clusters:\n  a/b: {drain: true}\n", nil, `cluster "a/b": want letters`},
		{"twice", "clusters:\n  c2: {}\n  c2: {}\n", nil, "line 3"},
		{"two documents", "clusters: {}\n---\nclusters: {}\n", nil, "a second YAML document"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse(tt.text)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func TestYAML(t *testing.T) {
	t.Parallel()
	s := mesh.ClusterSettings{"c3": {Weight: 20}, "c2": {Drain: true, Allow: []string{"exec", "proxy"}}, "c1": {}}
	text, err := YAML(s)
	if err != nil {
		t.Fatal(err)
	}
	const want = "clusters:\n  c2:\n    drain: true\n    allow: [exec, proxy]\n  c3:\n    weight: 20\n"
	if text != want {
		t.Errorf("%q, want %q", text, want)
	}
	delete(s, "c1")
	if again, err := Parse(text); err != nil || !reflect.DeepEqual(again, s) {
		t.Errorf("read again: %+v, %v", again, err)
	}
	if _, err := YAML(mesh.ClusterSettings{"c2": {Weight: 2000}}); err == nil {
		t.Error("a weight of 2000 was written")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("clusters:\n  c2: {drain: true, weight: 50, onLost: drop, allow: [exec]}\n")
	f.Add("clusters: &a {c: *a}")
	f.Add("a: b\n---\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		out, err := YAML(s)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if _, err := Parse(out); err != nil {
			t.Fatalf("%q was written as %q: %v", text, out, err)
		}
	})
}
