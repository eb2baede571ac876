package output

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// yamlChunk is the size of the JSON that is converted at once, in bytes. The nodes of
// YAML take fifty times the memory.
const yamlChunk = 64 << 10

// writeYAML writes the compact JSON value text as YAML, with members in the same order.
func writeYAML(w io.Writer, text jsontext.Value, chunk int) error {
	out := yamlWriter{bufio.NewWriterSize(w, 64<<10), chunk}
	if err := out.value(text, "", ""); err != nil {
		return fmt.Errorf("convert result to YAML: %w", err)
	}
	return out.Flush()
}

// yamlWriter writes a value that is larger than a chunk part by part.
type yamlWriter struct {
	*bufio.Writer
	chunk int
}

// small reports whether a value, indented by rest, is written as a whole. Deep values
// are, too: each level of parts reads everything below it again.
func (w yamlWriter) small(text jsontext.Value, rest string) bool {
	kind := text.Kind()
	return len(text) <= max(w.chunk, len("{}")) || len(rest) > 64 || kind != jsontext.KindBeginObject && kind != jsontext.KindBeginArray
}

// value writes a value. first precedes its first line, rest the others.
func (w yamlWriter) value(text jsontext.Value, first, rest string) error {
	d := jsontext.NewDecoder(bytes.NewReader(text))
	if w.small(text, rest) {
		node, err := yamlNode(d)
		if err != nil {
			return err
		}
		return w.node(node, first, rest)
	}
	begin, err := d.ReadToken()
	if err != nil {
		return err
	}
	part := w.item
	if begin.Kind() == jsontext.KindBeginObject {
		part = w.member
	}
	for kind := d.PeekKind(); kind != jsontext.KindEndObject && kind != jsontext.KindEndArray; kind = d.PeekKind() {
		if err := part(d, first, rest); err != nil {
			return err
		}
		first = rest
	}
	return nil
}

// item writes the next item of an array.
func (w yamlWriter) item(d *jsontext.Decoder, first, rest string) error {
	text, err := d.ReadValue()
	if err != nil {
		return err
	}
	if !w.small(text, rest) {
		return w.value(text, first+"- ", rest+"  ")
	}
	value, err := yamlNode(jsontext.NewDecoder(bytes.NewReader(text)))
	if err != nil {
		return err
	}
	return w.node(&yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{value}}, first, rest)
}

// member writes the next member of an object.
func (w yamlWriter) member(d *jsontext.Decoder, first, rest string) error {
	key, err := yamlNode(d)
	if err != nil {
		return err
	}
	text, err := d.ReadValue()
	if err != nil {
		return err
	}
	if !w.small(text, rest) {
		head, err := yamlText(yamlPair(key, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}))
		if err != nil {
			return err
		}
		if bytes.IndexByte(head, '\n') == len(head)-1 && bytes.HasSuffix(head, []byte(":\n")) { // else the key is long
			w.lines(head, first, rest)
			return w.value(text, rest+"  ", rest+"  ")
		}
	}
	value, err := yamlNode(jsontext.NewDecoder(bytes.NewReader(text)))
	if err != nil {
		return err
	}
	return w.node(yamlPair(key, value), first, rest)
}

func (w yamlWriter) node(node *yaml.Node, first, rest string) error {
	text, err := yamlText(node)
	w.lines(text, first, rest)
	return err
}

// lines writes lines of YAML. Flush returns the errors.
func (w yamlWriter) lines(text []byte, first, rest string) {
	for line := range bytes.Lines(escapeQuoted(text, appendYAMLEscape)) {
		if len(line) > 1 {
			w.WriteString(first)
		}
		w.Write(line)
		first = rest
	}
}

func yamlPair(key, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, value}}
}

func yamlText(node *yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	err := enc.Encode(node)
	return out.Bytes(), err
}

// yamlNode reads one JSON value. A YAML parser could not read JSON: the two differ in
// surrogate pairs and in the length of keys.
func yamlNode(d *jsontext.Decoder) (*yaml.Node, error) {
	tok, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch tok.Kind() {
	case jsontext.KindBeginObject:
		return yamlChildren(d, &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"})
	case jsontext.KindBeginArray:
		return yamlChildren(d, &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"})
	case jsontext.KindString:
		s := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: tok.String()}
		if strings.ContainsFunc(s.Value, mustEscape) {
			s.Style = yaml.DoubleQuotedStyle
		}
		return s, nil
	default: // null, true, false and numbers are the same in YAML
		return &yaml.Node{Kind: yaml.ScalarNode, Value: tok.String()}, nil
	}
}

// yamlChildren adds the values up to the end of the object or array.
func yamlChildren(d *jsontext.Decoder, parent *yaml.Node) (*yaml.Node, error) {
	for d.PeekKind() != jsontext.KindEndObject && d.PeekKind() != jsontext.KindEndArray {
		child, err := yamlNode(d)
		if err != nil {
			return nil, err
		}
		parent.Content = append(parent.Content, child)
	}
	if len(parent.Content) == 0 {
		parent.Style = yaml.FlowStyle // {} and []
	}
	_, err := d.ReadToken()
	return parent, err
}
