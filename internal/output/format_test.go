package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

func TestFormatSet(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Format{
		"table": FormatTable, "short": FormatTable, "json": FormatJSON, "yaml": FormatYAML,
	} {
		var f Format
		if err := f.Set(in); err != nil || f != want {
			t.Errorf("Set(%q) = %v, %q, want %q", in, err, f, want)
		}
	}
	f := FormatJSON
	err := f.Set("xml")
	if want := `output format "xml" is not supported, use table, json or yaml`; err == nil || err.Error() != want {
		t.Errorf("Set(xml) = %v, want %s", err, want)
	}
	if f != FormatJSON {
		t.Errorf("a failed Set changed the value to %q", f)
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	type item struct {
		Name  string            `json:"name"`
		Port  int               `json:"port,omitzero"`
		Tags  []string          `json:"tags"`
		Extra map[string]string `json:"extra,omitzero"`
	}
	value := []item{
		{Name: "a", Port: 80, Tags: []string{"true", "<b>", ""}, Extra: map[string]string{"b": "2", "a": "1"}},
		{Name: "\u202e\U000e0001\x1b 日本"},
	}
	wantJSON := `[
    {
        "name": "a",
        "port": 80,
        "tags": [
            "true",
            "<b>",
            ""
        ],
        "extra": {
            "a": "1",
            "b": "2"
        }
    },
    {
        "name": "\u202e\udb40\udc01\u001b 日本",
        "tags": []
    }
]
`
	wantYAML := `- name: a
  port: 80
  tags:
    - "true"
    - <b>
    - ""
  extra:
    a: "1"
    b: "2"
- name: "\U0000202e\U000E0001\e 日本"
  tags: []
`
	for format, want := range map[Format]string{FormatJSON: wantJSON, FormatYAML: wantYAML} {
		var out bytes.Buffer
		if err := Write(&out, format, value); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
}

// FuzzYAMLChunks: YAML that is written by parts is what it is as a whole.
func FuzzYAMLChunks(f *testing.F) {
	f.Add([]byte(`{"a": [{"b": [[1, "x\n y\n\n"], []], "": {}}, {"c": {"d": {"e": ["\n  z", null]}}}], "f": " \u0001\u202e"}`))
	f.Add([]byte(`[[[["a"], "b"]], {"a": {"b": 1, "c": {"d": 2}}, "- ": ["~"]}]`))
	f.Add([]byte(`{"` + strings.Repeat("k", 200) + `": {"a": [1]}, "x\ny": [[2]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		text := jsontext.Value(data)
		if !text.IsValid() || text.Compact() != nil {
			return
		}
		var whole bytes.Buffer
		if err := writeYAML(&whole, text, len(text)); err != nil {
			t.Fatal(err)
		}
		for _, chunk := range []int{0, 10, 20} {
			var parts bytes.Buffer
			if err := writeYAML(&parts, text, chunk); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(whole.String(), parts.String()); diff != "" {
				t.Errorf("by %d bytes: %s", chunk, diff)
			}
		}
	})
}

// FuzzWrite: JSON and YAML decode to what was written, whatever the text.
func FuzzWrite(f *testing.F) {
	f.Add("name", "value")
	f.Add("0x10", "~")
	f.Add("a: b", "- \u202e\U0001f600\x7f\u0085\ufeff\n\ttab ")
	f.Fuzz(func(t *testing.T, key, value string) {
		in := map[string]any{key: []any{value, nil, true, 1.5e300}, "": map[string]any{}}
		var text bytes.Buffer
		if err := Write(&text, FormatJSON, in); err != nil {
			t.Fatal(err)
		}
		var fromJSON, fromYAML any
		if err := json.Unmarshal(text.Bytes(), &fromJSON); err != nil {
			t.Fatalf("%v: %q", err, text.String())
		}
		text.Reset()
		if err := Write(&text, FormatYAML, in); err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text.Bytes(), &fromYAML); err != nil {
			t.Fatalf("%v: %q", err, text.String())
		}
		if diff := cmp.Diff(fromJSON, fromYAML); diff != "" {
			t.Errorf("YAML differs from JSON: %s\n%q", diff, text.String())
		}
		if i := bytes.IndexFunc(text.Bytes(), mustEscape); i >= 0 {
			t.Errorf("byte %d does not print: %q", i, text.String())
		}
	})
}
