package yamldoc

import (
	"iter"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// follow returns the value of an alias and any other node unchanged. An alias
// never refers to an alias: anchors are on values.
func follow(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// Value is one value of a document. The zero Value and a missing value are null.
type Value struct{ n *yaml.Node }

// IsNull reports whether the value is null or missing.
func (v Value) IsNull() bool {
	n := follow(v.n)
	return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// IsMapping reports whether the value is a mapping.
func (v Value) IsMapping() bool {
	n := follow(v.n)
	return n != nil && n.Kind == yaml.MappingNode
}

// Line returns the line of the file on which the value starts; 0 for a missing value.
func (v Value) Line() int {
	if v.n == nil {
		return 0
	}
	return v.n.Line
}

// Text returns the text of a scalar as written; empty for other values.
func (v Value) Text() string {
	n := follow(v.n)
	if n == nil || n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		return ""
	}
	return n.Value
}

// Get returns the value of a field of a mapping, null if there is none.
func (v Value) Get(key string) Value {
	_, value := child(follow(v.n), key)
	return Value{value}
}

// Keys returns the keys of a mapping as written.
func (v Value) Keys() []string {
	n := follow(v.n)
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	var keys []string
	for i := 0; i < len(n.Content); i += 2 {
		keys = append(keys, n.Content[i].Value)
	}
	return keys
}

// Fields iterates over the fields of a mapping: keys as written, and values.
func (v Value) Fields() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		n := follow(v.n)
		if n == nil || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i < len(n.Content); i += 2 {
			if !yield(n.Content[i].Value, Value{n.Content[i+1]}) {
				return
			}
		}
	}
}

// Exceeds reports whether a list or a mapping in the value has more than a number of entries,
// and returns its path, or whether the value consists of more than a number of names and
// values; then the path is "".
func (v Value) Exceeds(entries, values int) (path string, exceeds bool) {
	left := values
	path, exceeds = exceeding(v.n, entries, &left)
	return path, exceeds || left < 0
}

// exceeding subtracts the size of a node from left. It stops when nothing is left.
func exceeding(n *yaml.Node, entries int, left *int) (path string, exceeds bool) {
	n = follow(n)
	if *left--; n == nil || *left < 0 {
		return "", false
	}
	isList, step := n.Kind == yaml.SequenceNode, 1
	if n.Kind == yaml.MappingNode {
		step = 2
	}
	if len(n.Content)/step > entries {
		return "", true
	}
	for i := 0; i < len(n.Content); i += step {
		*left -= step - 1
		if path, exceeds = exceeding(n.Content[i+step-1], entries, left); !exceeds {
			continue
		}
		if isList {
			return prependPath(strconv.Itoa(i), path, true), true
		}
		return prependPath(n.Content[i].Value, path, false), true
	}
	return "", false
}

// prependPath returns a path below the value of a name or an index.
func prependPath(name, path string, index bool) string {
	first := joinPath("", name, index)
	if path == "" || path[0] == '[' {
		return first + path
	}
	return first + "." + path
}

// Items returns the items of a list; ok is false when the value is not a list.
func (v Value) Items() (items []Value, ok bool) {
	n := follow(v.n)
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil, false
	}
	for _, c := range n.Content {
		items = append(items, Value{c})
	}
	return items, true
}

// LineOf returns the line of the field at the path, such as
// spec.servers[0].port.number or metadata.labels[example.com/a]. For a missing
// field it returns the line of the innermost field that exists.
func (v Value) LineOf(path string) int {
	line, _ := v.locate(path)
	return line
}

// TextLineOf returns the line of the file that holds line textLine, from 1, of
// the text in the field at the path. Only literal block text has such lines; for
// other styles it returns the line of the field.
func (v Value) TextLineOf(path string, textLine int) int {
	line, n := v.locate(path)
	if n != nil && n.Kind == yaml.ScalarNode && n.Style&yaml.LiteralStyle != 0 && textLine > 0 {
		return n.Line + textLine
	}
	return line
}

// locate returns the line of the field and its value, nil for a missing field.
func (v Value) locate(path string) (int, *yaml.Node) {
	line, n := v.Line(), follow(v.n)
	for _, part := range splitPath(path) {
		key, value := child(n, part)
		if key == nil {
			return line, nil
		}
		line, n = key.Line, follow(value)
	}
	return line, n
}

// child returns the key and the value of a field of a mapping. For an item of a
// list both are the item.
func child(n *yaml.Node, name string) (key, value *yaml.Node) {
	switch {
	case n == nil:
	case n.Kind == yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			if n.Content[i].Value == name {
				return n.Content[i], n.Content[i+1]
			}
		}
	case n.Kind == yaml.SequenceNode:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i], n.Content[i]
		}
	}
	return nil, nil
}

func splitPath(path string) []string {
	var parts []string
	for path != "" {
		if rest, ok := strings.CutPrefix(path, "["); ok {
			part, after, _ := strings.Cut(rest, "]")
			parts = append(parts, part)
			path = strings.TrimPrefix(after, ".")
			continue
		}
		i := strings.IndexAny(path, ".[")
		if i < 0 {
			return append(parts, path)
		}
		parts = append(parts, path[:i])
		path = strings.TrimPrefix(path[i:], ".")
	}
	return parts
}

func joinPath(path, name string, index bool) string {
	switch {
	case index || strings.ContainsAny(name, ".[]"):
		return path + "[" + name + "]"
	case path == "":
		return name
	}
	return path + "." + name
}
