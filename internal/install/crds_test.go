package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// definition holds the parts of a CustomResourceDefinition that clients see.
type definition struct {
	Metadata struct{ Name string }
	Spec     struct {
		Group, Scope string
		Names        struct {
			Kind, ListKind, Plural, Singular string
			ShortNames, Categories           []string
		}
		Versions []struct {
			Name            string
			Served, Storage bool
			Subresources    map[string]any

			AdditionalPrinterColumns []struct{ Name, Type, JSONPath string }
		}
	}
}

// TestCRDs: the CustomResourceDefinitions have the names and versions of Istio's, which
// the module of Istio's API contains.
func TestCRDs(t *testing.T) {
	t.Parallel()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "istio.io/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "kubernetes/customresourcedefinitions.gen.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]definition{}, map[string]definition{}
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4<<10); ; {
		var d definition
		if err := decoder.Decode(&d); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if d.Metadata.Name != "" {
			want[d.Metadata.Name] = d
		}
	}
	v := Default(testImage)
	v.CRDs, v.ControlPlane.Disabled = true, true
	objects, err := Objects(&v)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetKind() != "CustomResourceDefinition" {
			continue
		}
		text, err := json.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		var d definition
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		got[d.Metadata.Name] = d
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-Istio +meshctl):\n%s", diff)
	}
}
