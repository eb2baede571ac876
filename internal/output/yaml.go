package output

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// writeYAML writes the JSON value text as YAML, members in the same order.
func writeYAML(w io.Writer, text []byte) error {
	node, err := yamlNode(jsontext.NewDecoder(bytes.NewReader(text)))
	if err != nil {
		return fmt.Errorf("convert result to YAML: %w", err)
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(node); err != nil {
		return fmt.Errorf("convert result to YAML: %w", err)
	}
	_, err = w.Write(escapeQuoted(out.Bytes(), appendYAMLEscape))
	return err
}

// yamlNode reads one JSON value. JSON is not handed to a YAML parser, because
// the two differ in surrogate pairs and in the length of keys.
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

// yamlChildren adds what follows up to the end of the object or array.
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
