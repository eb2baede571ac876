package inject

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

var update = flag.Bool("update", false, "rewrite golden files")

// settingsOf returns the settings in a document of a golden file: the mapping settings with
// the keys mesh, values, config and proxyConfigs.
func settingsOf(t *testing.T, text string) Settings {
	t.Helper()
	var given struct {
		Mesh, Values, Config map[string]any
		ProxyConfigs         []map[string]any
	}
	if err := yaml.UnmarshalStrict([]byte(text), &given); err != nil {
		t.Fatal(err)
	}
	yamlOf := func(v map[string]any) string {
		if v == nil {
			return ""
		}
		text, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	mesh, _, err := ParseMesh(yamlOf(given.Mesh))
	if err != nil {
		t.Fatal(err)
	}
	values, err := ParseValues(yamlOf(given.Values), yamlOf(given.Config))
	if err != nil {
		t.Fatal(err)
	}
	var configs []*snapshot.ProxyConfig
	for _, object := range given.ProxyConfigs {
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseProxyConfig(text)
		if err != nil {
			t.Fatal(err)
		}
		configs = append(configs, c)
	}
	return Settings{Mesh: mesh, Values: values, ProxyConfigs: configs, Image: "registry.example/meshctl:1"}
}

// TestGolden: testdata/CASE.in.yaml has settings in a first document if it has the key
// "settings", and objects. testdata/CASE.out.yaml has the injected objects, or the errors, and
// what a user reads in comments.
func TestGolden(t *testing.T) {
	t.Parallel()
	cases, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(cases) < 30 {
		t.Fatalf("%d cases, %v; want 30", len(cases), err)
	}
	for _, path := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".in.yaml"), func(t *testing.T) {
			t.Parallel()
			golden := strings.TrimSuffix(path, ".in.yaml") + ".out.yaml"
			got := run(t, path)
			if *update {
				if err := os.WriteFile(golden, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// run returns the output of a case. It injects the output again, which must change nothing.
func run(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	settings, objects, ok := strings.Cut(string(text), "\n---\n")
	if !ok || !strings.Contains(settings, "settings:") {
		settings, objects = "", string(text)
	}
	var given struct {
		Settings map[string]any `json:"settings"`
	}
	if err := yaml.Unmarshal([]byte(settings), &given); err != nil {
		t.Fatal(err)
	}
	inner := ""
	if given.Settings != nil {
		made, err := yaml.Marshal(given.Settings)
		if err != nil {
			t.Fatal(err)
		}
		inner = string(made)
	}
	cfg := settingsOf(t, inner)
	var out strings.Builder
	i, err := New(cfg)
	if err != nil {
		fmt.Fprintf(&out, "# refused settings: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n# "))
		return []byte(out.String())
	}
	made, outcomes, err := i.Text(t.Context(), []byte(objects), Pod{})
	if err != nil {
		fmt.Fprintf(&out, "# refused: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n# "))
	}
	for _, o := range outcomes {
		if o.Skipped != "" {
			fmt.Fprintf(&out, "# %s is not injected: %s (asked: %v)\n", o.Object, o.Skipped, o.Asked)
		}
		for _, w := range o.Warnings {
			fmt.Fprintf(&out, "# %s: %s\n", o.Object, w)
		}
	}
	if err == nil {
		out.Write(made)
		again, _, err := i.Text(t.Context(), made, Pod{})
		if err != nil || string(again) != string(made) {
			t.Errorf("the second injection changes the result, %v:\n%s", err, cmp.Diff(string(made), string(again)))
		}
	}
	return []byte(out.String())
}
