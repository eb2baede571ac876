// Package yamldoc reads YAML (and so JSON) documents that a person wrote and
// keeps the line of every field: a document becomes JSON for the decoder of
// its type, and whatever the decoder or a check refuses is found again as a
// path and a line. It refuses duplicate keys, and it bounds depth and what
// aliases may expand to. It imports nothing of ours and does no I/O.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxDepth is how deep values may nest.
	MaxDepth = 100
	// MaxAliased is how much aliases and merge keys may add to one document,
	// in bytes, so that a small file cannot become a huge object.
	MaxAliased = 1 << 20
	// valueSize is what a value counts for beside its text.
	valueSize = 16
)

// Error is a fault of the YAML itself. Lines count from 1 in the file.
type Error struct {
	Line   int
	Reason string
	// First is the line of what Line gives again; 0 for other faults.
	First int
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text()) }

// Text is the fault without its own line.
func (e *Error) Text() string {
	if e.First == 0 {
		return e.Reason
	}
	return fmt.Sprintf("%s, first in line %d", e.Reason, e.First)
}

// Chunk is the text of one document; Line is the line of the file it starts
// at, from 1.
type Chunk struct {
	Text []byte
	Line int
}

// Split cuts a stream at its document markers, without parsing it, so that a
// broken document leaves its neighbours readable. A marker at the start of a
// line is a marker in every context that YAML allows. Chunks without content
// are among the result; Parse returns a null value for them.
func Split(data []byte) iter.Seq[Chunk] {
	return func(yield func(Chunk) bool) {
		start, startLine, line := 0, 1, 1
		begun := false // the chunk holds a marker or content, not only comments and directives
		for pos := 0; pos < len(data); line++ {
			end := len(data)
			if i := bytes.IndexByte(data[pos:], '\n'); i >= 0 {
				end = pos + i + 1
			}
			text := bytes.TrimRight(data[pos:end], " \t\r\n")
			switch {
			case isMarker(text, "---"):
				if begun {
					if !yield(Chunk{data[start:pos], startLine}) {
						return
					}
					start, startLine = pos, line
				}
				begun = true
			case isMarker(text, "..."):
				if !yield(Chunk{data[start:end], startLine}) {
					return
				}
				start, startLine, begun = end, line+1, false
			case len(text) > 0 && text[0] != '#' && text[0] != '%':
				begun = true
			}
			pos = end
		}
		if start < len(data) {
			yield(Chunk{data[start:], startLine})
		}
	}
}

func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t')
}

// Parse reads one document. Its value is null when the chunk has no content.
// Errors are of type *Error.
func Parse(c Chunk) (Value, error) { return new(Parser).Parse(c) }

// Parser parses documents one after another with little garbage. The zero
// Parser is ready for use, by one goroutine at a time.
type Parser struct{ plain plainParser }

// Parse is the function Parse, but for its value, which holds until the next
// call.
func (p *Parser) Parse(c Chunk) (Value, error) {
	if root, ok := p.plain.parse(c); ok {
		return Value{root}, nil
	}
	return parseAny(c)
}

// parseAny is Parse for the whole of YAML.
func parseAny(c Chunk) (Value, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(c.Text, &doc); err != nil {
		reason := parserReason(err)
		return Value{}, &Error{Line: c.Line + faultyLine(c.Text, reason) - 1, Reason: reason}
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
		return Value{}, nil
	}
	root := doc.Content[0]
	p := preparer{offset: c.Line - 1, sizes: map[*yaml.Node]int{}}
	if err := p.prepare(root, 0); err != nil {
		return Value{}, err
	}
	if _, err := p.expand(root); err != nil {
		return Value{}, err
	}
	return Value{root}, nil
}

var reasonPrefix = regexp.MustCompile(`^yaml: (line \d+: )?`)

func parserReason(err error) string {
	return reasonPrefix.ReplaceAllString(err.Error(), "")
}

// faultyLine finds the line, from 1, whose arrival makes the parser fail for
// the reason: the parser's own number is often that of an enclosing mapping.
func faultyLine(text []byte, reason string) int {
	lines := bytes.SplitAfter(text, []byte("\n"))
	ends := make([]int, len(lines))
	pos := 0
	for i, l := range lines {
		pos += len(l)
		ends[i] = pos
	}
	i := sort.Search(len(lines)-1, func(i int) bool {
		var n yaml.Node
		err := yaml.Unmarshal(text[:ends[i]], &n)
		return err != nil && parserReason(err) == reason
	})
	return i + 1
}

// preparer makes a parsed tree ready for use: lines count in the file, merge
// keys are resolved, faults that the parser lets pass are refused.
type preparer struct {
	offset int
	size   int                // of the document without what aliases add
	merged int                // pairs that merge keys brought
	sizes  map[*yaml.Node]int // of what aliases stand for; inProgress while it is computed
}

const inProgress = -1

func (p *preparer) prepare(n *yaml.Node, depth int) error {
	n.Line += p.offset
	p.size += valueSize + len(n.Value)
	if depth > MaxDepth {
		return &Error{Line: n.Line, Reason: fmt.Sprintf("values nest more than %d deep", MaxDepth)}
	}
	for _, c := range n.Content {
		if err := p.prepare(c, depth+1); err != nil {
			return err
		}
	}
	if n.Kind != yaml.MappingNode {
		return nil
	}
	seen := make(map[string]int, len(n.Content)/2)
	var merges []*yaml.Node
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			return &Error{Line: key.Line, Reason: "a key must be plain text"}
		}
		if first, twice := seen[key.Value]; twice {
			return &Error{key.Line, fmt.Sprintf("key %q is given twice", key.Value), first}
		}
		seen[key.Value] = key.Line
		if key.Tag == "!!merge" {
			merges = append(merges, n.Content[i+1])
		}
	}
	if len(merges) == 0 {
		return nil
	}
	return p.merge(n, seen, merges)
}

// merge replaces the merge keys of the mapping by the pairs they stand for.
// The pairs stay aliases, so that they count as such when they are expanded.
func (p *preparer) merge(n *yaml.Node, seen map[string]int, merges []*yaml.Node) error {
	var own []*yaml.Node
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Tag != "!!merge" {
			own = append(own, n.Content[i], n.Content[i+1])
		}
	}
	for _, m := range merges {
		sources := []*yaml.Node{m}
		if m.Kind == yaml.SequenceNode {
			sources = m.Content
		}
		for _, s := range sources {
			s = follow(s)
			if s.Kind != yaml.MappingNode {
				return &Error{Line: m.Line, Reason: "<< takes a mapping or a list of mappings"}
			}
			for i := 0; i < len(s.Content); i += 2 {
				key, value := s.Content[i], s.Content[i+1]
				if p.merged++; p.merged > MaxAliased/valueSize {
					return &Error{Line: m.Line, Reason: tooManyAliases}
				}
				if _, has := seen[key.Value]; has {
					continue
				}
				seen[key.Value] = key.Line
				own = append(own, key, &yaml.Node{Kind: yaml.AliasNode, Alias: follow(value), Line: value.Line})
			}
		}
	}
	n.Content = own
	return nil
}

const tooManyAliases = "aliases add more than 1 MiB to the document"

// expand returns the size of the value with its aliases written out.
func (p *preparer) expand(n *yaml.Node) (int, error) {
	target := follow(n)
	remember := n.Kind == yaml.AliasNode || n.Anchor != ""
	if remember {
		switch size, known := p.sizes[target]; {
		case size == inProgress:
			return 0, &Error{Line: n.Line, Reason: "an alias stands for a value that it is part of"}
		case known:
			return size, nil
		}
		p.sizes[target] = inProgress
	}
	size := valueSize + len(target.Value)
	for _, c := range target.Content {
		s, err := p.expand(c)
		if err != nil {
			return 0, err
		}
		if size += s; size > p.size+MaxAliased {
			return 0, &Error{Line: n.Line, Reason: tooManyAliases}
		}
	}
	if remember {
		p.sizes[target] = size
	}
	return size, nil
}

// follow returns what an alias stands for. An alias of an alias does not
// occur: anchors are on values.
func follow(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// Value is one value of a document. The zero Value is null, and so is a value
// that is not there.
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

// Line is the line of the file that the value starts at; 0 for none.
func (v Value) Line() int {
	if v.n == nil {
		return 0
	}
	return v.n.Line
}

// Text is the text of a scalar, as it is written; empty for others.
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

// Keys returns the keys of a mapping, as they are written.
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

// Items returns the items of a list; ok is false when the value is not one.
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

// LineOf is the line of the field that the path names, such as
// spec.servers[0].port.number or metadata.labels[example.com/a]; where the
// path leads to nothing, that of the last part which is there.
func (v Value) LineOf(path string) int {
	line, _ := v.locate(path)
	return line
}

// TextLineOf is the line of the file of a line, counted from 1, of the text
// in the field that the path names. Only literal block text has lines of its
// own; for other styles it is the line of the field.
func (v Value) TextLineOf(path string, textLine int) int {
	line, n := v.locate(path)
	if n != nil && n.Kind == yaml.ScalarNode && n.Style&yaml.LiteralStyle != 0 && textLine > 0 {
		return n.Line + textLine
	}
	return line
}

// locate returns the line of the field and its value, nil when it is missing.
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

// child returns a field of a mapping with its key, or an item of a list,
// which is its own key.
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

// asError returns the *Error in err, or err as a fault of the given line.
func asError(err error, line int) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Line: line, Reason: parserReason(err)}
}
