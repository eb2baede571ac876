package install

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// TestNullsAreNotSet: each value of the files of TestObjects, at every depth, that is null is as if
// it were left out.
func TestNullsAreNotSet(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all any
		if err := yaml.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
		read := func() (Values, string) {
			text, err := yaml.Marshal(all)
			if err != nil {
				t.Fatal(err)
			}
			v := Default(testImage)
			if _, err := v.Read("f", text); err != nil {
				return v, err.Error()
			}
			return v, ""
		}
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
				if path == "" && name == "kind" {
					continue
				}
				fields[name] = nil
				null, nullFault := read()
				delete(fields, name)
				none, noneFault := read()
				if diff := cmp.Diff(none, null); diff != "" || (nullFault == "") != (noneFault == "") {
					t.Errorf("%s: %s.%s: null differs from no value: %s, %s (-none +null):\n%s", file, path, name, noneFault, nullFault, diff)
				}
				fields[name] = field
				n++
			}
		}
		visit(all, "")
	}
	if n < 100 {
		t.Errorf("%d values were tried", n)
	}
}
