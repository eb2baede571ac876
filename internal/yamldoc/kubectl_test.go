package yamldoc_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/yamldoc"
)

// sameAsKubectl compares the JSON of a document with what kubectl and Helm read, unless one of them
// refuses it.
func sameAsKubectl(t *testing.T, text string) {
	t.Helper()
	v, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(text), Line: 1})
	if err != nil {
		return
	}
	got, err := v.JSON()
	if err != nil {
		return
	}
	want, err := sigsyaml.YAMLToJSON([]byte(text))
	if err != nil {
		return
	}
	var a, b any
	if err := json.Unmarshal(got, &a); err != nil {
		if strings.Contains(err.Error(), "cannot unmarshal number") {
			return // beyond the range of float64
		}
		t.Fatalf("%q: %s: %v", text, got, err)
	}
	if err := json.Unmarshal(want, &b); err != nil {
		t.Fatalf("%q: %s: %v", text, want, err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%q is\n%s, for kubectl\n%s", text, got, want)
	}
}

// scalars are plain scalars whose types differ between versions of YAML.
var scalars = strings.Fields(`y Y yes Yes YES yEs n N no No NO on On ON oN off Off OFF true True TRUE tRue false False FALSE t f
	~ null Null NULL nUll 0 -0 +1 -1 007 017 0o17 0x10 -0x10 0b11 -0b11 1_000 1e3 1E3 1e-3 .5 -.5 5. 1.0 +.5 0.1e1 08 0_1 1__0 _1
	12:30 12:30:45 1.5:2 2026-11-21 2026-11-21T10:00:00Z 1.2.3 v1 =  - -- << !x 0x 0b 0xg 9223372036854775807 9223372036854775808
	18446744073709551616 1.7976931348623157e308`)

// TestScalarsOfKubectl: values and keys of the kinds that differ between versions of YAML are what
// kubectl reads.
func TestScalarsOfKubectl(t *testing.T) {
	t.Parallel()
	for _, s := range scalars {
		for _, form := range []string{"a: " + s, "a: '" + s + "'", "[" + s + "]", "a: !!str " + s, "- " + s, "a: {b: " + s + "}"} {
			sameAsKubectl(t, form)
		}
	}
	for _, key := range []string{"y", "Yes", "on", "off", "true", "TRUE", "'y'", "8080", "a"} {
		sameAsKubectl(t, key+": 1")
		sameAsKubectl(t, "a: {"+key+": {b: yes}}")
	}
}

// FuzzScalarsOfKubectl compares plain scalars with what kubectl reads.
func FuzzScalarsOfKubectl(f *testing.F) {
	for _, s := range scalars {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) || strings.ContainsAny(s, "\n\r:&*!|>\"'%@`{}[],#?\u0085\u2028\u2029") || len(s) > math.MaxInt8 {
			return // other structures than a plain scalar
		}
		sameAsKubectl(t, "a: "+s)
	})
}
