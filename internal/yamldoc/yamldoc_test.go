package yamldoc_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/yamldoc"
)

func TestSplit(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		in   string
		want []string // "<line>:<text>"
	}{
		"empty":                      {"", nil},
		"one":                        {"a: 1\n", []string{"1:a: 1\n"}},
		"marker first":               {"---\na: 1\n", []string{"1:---\na: 1\n"}},
		"two":                        {"a: 1\n---\nb: 2", []string{"1:a: 1\n", "2:---\nb: 2"}},
		"comment before the first":   {"# x\n---\na: 1\n", []string{"1:# x\n---\na: 1\n"}},
		"directive":                  {"%YAML 1.2\n---\na: 1\n---\nb: 1\n", []string{"1:%YAML 1.2\n---\na: 1\n", "4:---\nb: 1\n"}},
		"end marker":                 {"a: 1\n...\nb: 2\n", []string{"1:a: 1\n...\n", "3:b: 2\n"}},
		"windows line ends":          {"a: 1\r\n---\r\nb: 2\r\n", []string{"1:a: 1\r\n", "2:---\r\nb: 2\r\n"}},
		"content after the marker":   {"--- {a: 1}\n--- {b: 2}\n", []string{"1:--- {a: 1}\n", "2:--- {b: 2}\n"}},
		"dashes that are no marker":  {"a: |\n  ---\n---x: 1\n-----BEGIN\n", []string{"1:a: |\n  ---\n---x: 1\n-----BEGIN\n"}},
		"empty document in between":  {"a: 1\n---\n---\nb: 2\n", []string{"1:a: 1\n", "2:---\n", "3:---\nb: 2\n"}},
		"marker with trailing space": {"a: 1\n---  \nb: 2\n", []string{"1:a: 1\n", "2:---  \nb: 2\n"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for c := range yamldoc.Split([]byte(tt.in)) {
				got = append(got, fmt.Sprintf("%d:%s", c.Line, c.Text))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("chunks differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ in, want string }{
		"nothing":            {"# only a comment\n", `null`},
		"null":               {"---\n", `null`},
		"scalars":            {"{a: 1, b: 1.5, c: true, d: ~, e: x, f: '1', g: 0x10, h: .5, i: 1_000, j: 017}", `{"a":1,"b":1.5,"c":true,"d":null,"e":"x","f":"1","g":16,"h":0.5,"i":1000,"j":15}`},
		"booleans":           {"[y, Yes, ON, True, n, no, OFF, FALSE]", `[true,true,true,true,false,false,false,false]`},
		"quoted words":       {"{a: 'yes', b: \"no\", c: !!str on, d: yes sir}", `{"a":"yes","b":"no","c":"on","d":"yes sir"}`},
		"booleans as keys":   {"{on: 1, off: 2, 'y': 3}", `{"true":1,"false":2,"y":3}`},
		"dates stay text":    {"a: 2026-11-21T10:00:00Z", `{"a":"2026-11-21T10:00:00Z"}`},
		"numbers as keys":    {"8080: {mode: STRICT}", `{"8080":{"mode":"STRICT"}}`},
		"block text":         {"a: |\n  x: 1\n  \"y\": 2\n", `{"a":"x: 1\n\"y\": 2\n"}`},
		"alias":              {"a: &x {b: 1}\nc: [*x, *x]", `{"a":{"b":1},"c":[{"b":1},{"b":1}]}`},
		"merge":              {"a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}", `{"a":{"b":1,"c":2},"d":{"c":3,"b":1}}`},
		"merge of several":   {"a: &x {b: 1}\nc: &y {b: 2, d: 4}\ne: {<<: [*x, *y]}", `{"a":{"b":1},"c":{"b":2,"d":4},"e":{"b":1,"d":4}}`},
		"big number":         {"a: 18446744073709551615", `{"a":18446744073709551615}`},
		"JSON with tabs":     {"{\n\t\"a\": [\n\t\t1\n\t]\n}", `{"a":[1]}`},
		"text that is a tag": {"a: !custom x", `{"a":"x"}`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parse(t, tt.in).JSON()
			if err != nil || string(got) != tt.want {
				t.Errorf("got %s, %v; want %s", got, err, tt.want)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", yamldoc.MaxDepth+2) + strings.Repeat("]", yamldoc.MaxDepth+2)
	bomb, mergeBomb := "a0: &a0 {k: lol}\n", "a0: &a0 {k: lol}\n"
	for i := range 40 {
		bomb += fmt.Sprintf("a%d: &a%d [*a%d, *a%d]\n", i+1, i+1, i, i)
		mergeBomb += fmt.Sprintf("a%d: &a%d {x: {<<: *a%d}, y: {<<: *a%d}}\n", i+1, i+1, i, i)
	}
	tests := map[string]struct {
		in   string
		line int
		want string
	}{
		"wrong indent":            {"a: 1\n---\nb:\n  c: 1\n   d: 2\n", 5, "mapping values are not allowed"},
		"list in a mapping":       {"a: 1\nb: 2\n- c\n", 3, "did not find expected key"},
		"open quote":              {"a: 1\nb: \"x\nc: 2\n", 2, "found unexpected end of stream"},
		"open bracket":            {"a: 1\nb: [x,\n", 2, "did not find expected node content"},
		"tab":                     {"a:\n\tb: 1\n", 2, "found character that cannot start any token"},
		"unknown alias":           {"a: 1\nb: *x\n", 2, "unknown anchor"},
		"key given twice":         {"a: 1\nb: 2\na: 3\n", 3, `key "a" is given twice, first in line 1`},
		"a mapping as key":        {"a: 1\n{b: 1}: 2\n", 2, "a key must be plain text"},
		"too deep":                {"a:\n  " + deep, 2, "nest more than 100 deep"},
		"bomb":                    {bomb, 0, "aliases add more than 1 MiB"},
		"bomb of merges":          {mergeBomb, 0, "aliases add more than 1 MiB"},
		"alias of itself":         {"a: 1\nb: &b [*b]\n", 2, "an alias stands for a value that it is part of"},
		"merge of itself":         {"a: &a {x: {<<: *a}}\n", 1, "an alias stands for a value that it is part of"},
		"merge of a scalar":       {"a: &a 1\nb: {<<: *a}\n", 2, "<< takes a mapping"},
		"binary":                  {"a: \x00\n", 1, "control characters are not allowed"},
		"not UTF-8":               {"a: \xff\n", 1, "invalid"},
		"number that JSON lacks":  {"a: 1\nb: .inf\n", 2, ".inf is not a number"},
		"text tagged as a number": {"a: !!int x\n", 1, "x is not a number"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := firstFault(tt.in)
			var e *yamldoc.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want a *yamldoc.Error", err)
			}
			if tt.line != 0 && e.Line != tt.line || !strings.Contains(e.Text(), tt.want) {
				t.Errorf("got line %d %q, want line %d %q", e.Line, e.Text(), tt.line, tt.want)
			}
		})
	}
}

func firstFault(in string) error {
	for c := range yamldoc.Split([]byte(in)) {
		v, err := yamldoc.Parse(c)
		if err != nil {
			return err
		}
		if _, err := v.JSON(); err != nil {
			return err
		}
	}
	return nil
}

func TestLines(t *testing.T) {
	t.Parallel()
	const text = `kind: X
metadata:
  labels:
    example.com/a: "1"
spec:
  servers:
  - port:
      number: 1
  - port: {name: b}
    hosts:
      - "*"
data:
  mesh: |
    trustDomain: x
    other: y
  folded: >
    a
`
	v := parse(t, text)
	for path, want := range map[string]int{
		"":                               1,
		"kind":                           1,
		"metadata.labels":                3,
		"metadata.labels[example.com/a]": 4,
		"metadata.labels[gone]":          3,
		"spec.servers[0].port.number":    8,
		"spec.servers[1]":                9,
		"spec.servers[1].port.number":    9,
		"spec.servers[1].hosts":          10,
		"spec.servers[1].hosts[0]":       11,
		"spec.servers[7].hosts":          6,
		"spec.servers[x]":                6,
		"nothing.at.all":                 1,
	} {
		if got := v.LineOf(path); got != want {
			t.Errorf("LineOf(%q) = %d, want %d", path, got, want)
		}
	}
	if got := v.TextLineOf("data.mesh", 2); got != 15 {
		t.Errorf("line 2 of the block text: got %d, want 15", got)
	}
	if got := v.TextLineOf("data.folded", 1); got != 16 {
		t.Errorf("line of folded text: got %d, want 16", got)
	}
}

func TestFault(t *testing.T) {
	t.Parallel()
	type doc struct {
		A string
		B []struct{ C, D int }
		E map[string]int
		F struct{ G bool }
	}
	for in, want := range map[string]string{
		"a: [x]":                          "a",
		"a: x\nb: [{c: 1}, {c: 1, d: x}]": "b[1].d",
		"b: {c: 1}":                       "b",
		"e: {x.y/z: 1.5}":                 "e[x.y/z]",
		"f: {g: maybe}":                   "f.g",
		"x: 1":                            "x",
		"[1]":                             "",
	} {
		v := parse(t, in)
		found := v.Refusals(io.EOF, 1, func(b []byte) error {
			d := json.NewDecoder(strings.NewReader(string(b)))
			d.DisallowUnknownFields()
			return d.Decode(&doc{})
		})
		if got := found[0].Path; got != want || found[0].Err == nil {
			t.Errorf("fault of %q: got %q, want %q", in, found, want)
		}
	}
}

func parse(t *testing.T, in string) yamldoc.Value {
	t.Helper()
	v, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(in), Line: 1})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// FuzzParse: whatever is accepted renders as JSON that parses to the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"a: 1\n---\nb: [x, {y: z}]\n", "a: &x {b: 1}\nc: {<<: *x}\n", "&a [*a]", "a: |\n  x\n...\n", "? x\n: y\n",
		"a: !!binary aGk=\n", "{\"a\":\"\\u0041\"}", "%TAG ! x\n---\n!y z\n", "a: 0x1F\nb: -.5e3\nc: 1_0\n", "- - - x\n", "~: 1\n<<: {a: 1}\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		size := 0
		for c := range yamldoc.Split(data) {
			size += len(c.Text)
			v, err := yamldoc.Parse(c)
			if err != nil {
				continue
			}
			first, err := v.JSON()
			if err != nil {
				continue
			}
			if !json.Valid(first) {
				t.Fatalf("%q gives invalid JSON %q", c.Text, first)
			}
			v.Refusals(io.EOF, 1, func([]byte) error { return nil })
			again, err := yamldoc.Parse(yamldoc.Chunk{Text: first, Line: 1})
			if err != nil {
				continue // such as text that YAML cannot spell in JSON's way
			}
			second, err := again.JSON()
			if err == nil && string(first) != string(second) {
				t.Fatalf("%q: %s became %s", c.Text, first, second)
			}
		}
		if size > len(data) {
			t.Fatal("chunks overlap")
		}
	})
}
