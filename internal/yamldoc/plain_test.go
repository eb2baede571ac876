package yamldoc

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// flat is what of a node counts, for comparing.
type flat struct {
	Kind     yaml.Kind
	Tag      string
	Value    string
	Style    yaml.Style
	Line     int
	Anchor   string
	Children []flat
}

func flatten(n *yaml.Node) flat {
	f := flat{n.Kind, n.ShortTag(), n.Value, n.Style, n.Line, n.Anchor, nil}
	for _, c := range n.Content {
		f.Children = append(f.Children, flatten(c))
	}
	return f
}

// checkPlain checks that the fast parser gives what the library does, if
// anything. It reports whether it does.
func checkPlain(t *testing.T, p *plainParser, text string) bool {
	t.Helper()
	c := Chunk{Text: []byte(text), Line: 7}
	got, ok := p.parse(c)
	if !ok {
		return false
	}
	want, err := parseAny(c)
	if err != nil {
		t.Fatalf("%q was accepted, which is wrong: %v", text, err)
	}
	if want.n == nil {
		t.Fatalf("%q was accepted and is empty", text)
	}
	if diff := cmp.Diff(flatten(want.n), flatten(got)); diff != "" {
		t.Fatalf("%q (-library +fast):\n%s", text, diff)
	}
	return true
}

// plainTexts are texts that must be parsed fast.
var plainTexts = []string{
	"a: 1\n", "a: 1", "---\na: b\n", "# x\n---\n# y\na: b # z\n", "  a: b\n  c: d\n", "a: b   \n\n\nc: d\n",
	"a:\nb: ~\nc: null\n", "a:\n  b:\n    c: d\n  e: f\ng: h\n", "a:\n- b\n- c\nd: e\n", "a:\n  - b\n  -   c: d\n      e: f\n",
	"- a\n- b: c\n  d:\n  - e\n- - f\n  - g\n", "a: []\nb: {}\nc: [1, x, \"y\", 'z z', {a: b, c: [d]}]\nd: { a: b , c: \"d\" }\n",
	"a: \"# x: y\" # z\nb: 'it \"is\"'\nc: x#y:z\nd: 10.96.0.1\ne: 1.5\nf: 0x10\ng: 017\nh: -5\ni: 2026-11-21\nj: 1_0\nk: .5\n",
	"a: yes\nb: on\nc: True\nd: ~x\ne: -x\nf: ---\ng: 1.2.3\nh: 99999999999999999999\ni: 1e3\nj: .inf\nk: y\nl: 00\nm: 0\nn: .1.2\no: 1..\np: '...'\n",
	"example.com/a-b: x\n80: y\n_: z\n", "a: x y  z  # c\nb: it's, [here] {too} & * ! | > % @\n", "a: # c\n  b: c\n# d\n  # e\n  f: g\n",
	`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: svc-1-abc
  creationTimestamp: null
  labels:
    kubernetes.io/service-name: svc-1
addressType: IPv4
ports:
- name: http
  port: 8080
endpoints:
- addresses: ["10.1.0.1"]
  conditions: {ready: true}
- addresses:
  - 10.1.0.2
  conditions:
    ready: true
  targetRef: {kind: Pod, name: a-1}
`,
}

// otherTexts are texts that must be left to the library, or be as it says.
var otherTexts = []string{
	"", "---\n", "a\n", "a: b\n c\n", "a: b\n\n c: d\n", "a: b\n# c\n  d\n", "a: \"b\n c\"\n", "a: \"\\n\"\n", "a: 'b''c'\n", "a: |\n  b\n",
	"a: &x b\nc: *x\n", "a: !!str 1\n", "<<: {a: b}\n", "a: b\na: c\n", "a: {b: c, b: d}\n", "a: [b,\n c]\n", "a: [b, ]\n", "a: [b: c]\n", "a: {b}\n",
	"a: b: c\n", "a: b:\n", "a:b\n", "a:\n\tb: c\n", "a:\n  b: c\n d: e\n", "a:\n   b\n", "- a\nb: c\n", "a: b\n- c\n", "a:\n - b\n - c\n- d\n",
	"-\n  a: b\n", "- \n- a\n", "? a\n: b\n", "\"a\": b\n", "a: \"b\" c\n", "a: \"b\"#c\n", "a: [b]#c\n", "a: [b] c\n", "a: b\n...\n", "a: b\n---\nc: d\n",
	"%YAML 1.2\n---\na: b\n", "a: \xc3\xa9\n", "a: b\r\n", "--- a\n", "... \na: b\n", ".a: b\n", "-a: b\n", "a: -\n", "a: - b\n", "a: - b: c\n", "a: {b:c}\n",
	"a: {b: c}\n  d: e\n", "a: [--]\n", "a: [-, b]\n", "a: [b c]\n", "a: @b\n", "a: `b\n", "a: ,b\n", "a: ]b\n", "a: {b: -c}\n", ": a\n", "a: #\n", "a : b\n",
	"a:  \n  - b\n  c: d\n", "  a: b\nc: d\n", "- a\n  - b\n", "a: [[[]\n", "a: }\n", "a: 1 #\n", "- [a]: b\n", "- {a: b}: c\n", "- 'a': b\n", "~: a\n", "a: ~: b\n",
}

func TestPlain(t *testing.T) {
	t.Parallel()
	var p plainParser // one, as nothing of a text may be left for the next
	for _, text := range plainTexts {
		if !checkPlain(t, &p, text) {
			t.Errorf("%q is not parsed fast", text)
		}
	}
	for _, text := range otherTexts {
		checkPlain(t, &p, text)
	}
}

// FuzzPlain: what the fast parser accepts it reads as the library does.
func FuzzPlain(f *testing.F) {
	for _, s := range append(plainTexts, otherTexts...) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) { checkPlain(t, new(plainParser), text) })
}
