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

func TestParseFormat(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Format{
		"table": FormatTable, "short": FormatTable, "json": FormatJSON, "yaml": FormatYAML,
		"wide": FormatWide, "name": FormatName, "csv": FormatCSV,
		"jsonpath={.a}": "jsonpath={.a}", "jsonpath=.a": "jsonpath=.a", "custom-columns=A,B:.c": "custom-columns=A,B:.c",
	} {
		if f, err := ParseFormat(in); err != nil || f != want {
			t.Errorf("ParseFormat(%q) = %q, %v, want %q", in, f, err, want)
		}
	}
	for in, want := range map[string]string{
		"xml":                `unknown format`,
		"jsonpath=":          `jsonpath: want a template`,
		"jsonpath={.a":       `jsonpath "{.a": unclosed action`,
		"custom-columns=":    `custom-columns "": want COLUMN or HEADER:COLUMN`,
		"custom-columns=A,":  `custom-columns "A,": want COLUMN`,
		"custom-columns=A:.": `custom-columns "A:.": want COLUMN`,
	} {
		if _, err := ParseFormat(in); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("ParseFormat(%q): got %v, want %s", in, err, want)
		}
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

// FuzzYAMLChunks: YAML written in parts equals YAML written as a whole.
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

// FuzzWrite: JSON and YAML decode to the value, for every text.
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

// TestWriteTable: one table in every format for tables.
func TestWriteTable(t *testing.T) {
	t.Parallel()
	table := &Table{
		Header: []string{"WHAT", "NAME", "TOKEN LEFT"}, Gap: 2,
		Rows: [][]string{{"a", "x", "1, \"2\""}, {"b", "y\x1b", ""}, {"c", "x", "3"}},
	}
	for f, want := range map[Format]string{
		FormatTable: "WHAT  NAME   TOKEN LEFT\na     x      1, \"2\"\nb     y\\x1b\nc     x      3\n",
		FormatName:  "x\ny\\x1b\n",
		FormatCSV:   "WHAT,NAME,TOKEN LEFT\na,x,\"1, \"\"2\"\"\"\nb,y\\x1b,\nc,x,3\n",

		"custom-columns=token_left,.name":   "TOKEN_LEFT  NAME\n1, \"2\"      x\n            y\\x1b\n3           x\n",
		"custom-columns=Of:.Name,X:what":    "Of     X\nx      a\ny\\x1b  b\nx      c\n",
		"custom-columns=NAME:.metadata.x":   "",
		"custom-columns=TOKEN LEFT,NOTHING": "",
	} {
		var out bytes.Buffer
		err := WriteTable(&out, f, table)
		if out.String() != want || (err != nil) != (want == "") {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", f, err, out.String(), want)
		}
		if err != nil && !strings.Contains(err.Error(), "its columns are WHAT, NAME, TOKEN LEFT; fields of JSON are for jsonpath") {
			t.Errorf("%s: %v", f, err)
		}
	}
	table.Name, table.NoHeader = "WHAT", true
	for f, want := range map[Format]string{
		FormatName: "a\nb\nc\n", FormatCSV: "a,x,\"1, \"\"2\"\"\"\nb,y\\x1b,\nc,x,3\n", "custom-columns=WHAT": "a\nb\nc\n",
	} {
		var out bytes.Buffer
		if err := WriteTable(&out, f, table); err != nil || out.String() != want {
			t.Errorf("without a header, %s: %v, got\n%s\nwant\n%s", f, err, out.String(), want)
		}
	}
}

// TestJSONPathOfList: templates select items of a list.
func TestJSONPathOfList(t *testing.T) {
	t.Parallel()
	for _, template := range []string{"{[*].name}", "{.[*].name}", "{$[*].name}", ".[*].name", "[*].name", "$[*].name"} {
		var out bytes.Buffer
		err := Write(&out, Format("jsonpath="+template), []map[string]any{{"name": "a"}, {"name": "b"}})
		if err != nil || out.String() != "a b\n" {
			t.Errorf("%s: %q, %v", template, out.String(), err)
		}
	}
}

// TestJSONPath: templates select values, and strings are escaped.
func TestJSONPath(t *testing.T) {
	t.Parallel()
	value := map[string]any{
		"items": []map[string]any{{"name": "a", "port": 80, "big": int64(1 << 60)}, {"name": "b\x1b[2J\n", "port": 443, "tags": []string{"x"}}},
	}
	for template, want := range map[string]string{
		"{.items[0].name}":                       "a\n",
		".items[*].port":                         "80 443\n",
		"$.items[0].big":                         "1152921504606846976\n",
		"{.items[?(@.port==443)].name}{\"\\n\"}": "b\\x1b[2J\\n\n",
		"{range .items[*]}{.name}{\"\\t\"}{.tags}{\"\\n\"}{end}": "a\t\nb\\x1b[2J\\n\t[\"x\"]\n",
		"{.nothing}":       "",
		"{.items[7].name}": "error",
	} {
		var out bytes.Buffer
		f, err := ParseFormat("jsonpath=" + template)
		if err != nil {
			t.Fatal(err)
		}
		err = Write(&out, f, value)
		got := out.String()
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: %q, want %q, %v", template, got, want, err)
		}
	}
}
