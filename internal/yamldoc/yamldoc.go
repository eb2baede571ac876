// Package yamldoc reads YAML and JSON documents that people write and keeps the
// line of every field. Value.JSON renders a document for the decoder of its type;
// Value.Fault and Value.LineOf find the field and the line that the decoder or a
// later check refuses. Duplicate keys are errors. The depth of values and the
// size that aliases expand to are bounded. The package does no I/O.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"sort"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxDepth bounds the nesting of values.
	MaxDepth = 100
	// MaxAliased bounds how much aliases and merge keys add to one document, in
	// bytes, so that a small file cannot become a huge object.
	MaxAliased = 1 << 20
	// valueSize is the size of a value besides its text, in bytes, for MaxAliased.
	valueSize = 16
)

// Error reports invalid YAML. Lines count from 1 in the file.
type Error struct {
	Line   int
	Reason string
	// First is the line of the first definition, if Line repeats it; 0 for other faults.
	First int
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text()) }

// Text returns the error without Line.
func (e *Error) Text() string {
	if e.First == 0 {
		return e.Reason
	}
	return fmt.Sprintf("%s, first in line %d", e.Reason, e.First)
}

// Chunk is the text of one document. Line is its first line in the file, from 1.
type Chunk struct {
	Text []byte
	Line int
}

// Split cuts a stream at its document markers without parsing it, so that one
// broken document does not make the others unreadable. YAML allows no other
// meaning of a marker at the start of a line. Chunks without content are included;
// Parse returns a null value for them. Text with a byte order mark is decoded.
func Split(data []byte) iter.Seq[Chunk] {
	return func(yield func(Chunk) bool) {
		data := Decode(data)
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

// Parse reads one document. The value is null when the chunk has no content.
// Errors are of type *Error.
func Parse(c Chunk) (Value, error) {
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

// ParseOnly reads a text with at most one document. The value is null when it has none.
func ParseOnly(text []byte) (Value, error) {
	var only Value
	for chunk := range Split(text) {
		doc, err := Parse(chunk)
		switch {
		case err != nil:
			return Value{}, err
		case doc.IsNull():
		case !only.IsNull():
			return Value{}, &Error{Line: doc.Line(), Reason: "a second YAML document"}
		default:
			only = doc
		}
	}
	return only, nil
}

var reasonPrefix = regexp.MustCompile(`^yaml: (line \d+: )?`)

func parserReason(err error) string {
	return reasonPrefix.ReplaceAllString(err.Error(), "")
}

// faultyLine returns the first line, from 1, at which the parser fails for the
// reason. The line in the parser's own error is often the start of a mapping
// around the fault.
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

// preparer makes a parsed tree ready for use: it sets the lines of the file,
// resolves merge keys, and refuses faults that the parser accepts.
type preparer struct {
	offset int
	size   int                // of the document without its aliases
	merged int                // pairs from merge keys
	sizes  map[*yaml.Node]int // of values with anchors; inProgress while it is computed
}

const inProgress = -1

func (p *preparer) prepare(n *yaml.Node, depth int) error {
	n.Line += p.offset
	asBoolean(n)
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

// merge replaces the merge keys of the mapping by the pairs that they refer to.
// The pairs stay aliases, so that expand counts them.
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

// expand returns the size of the value with all aliases expanded.
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

// asError returns the *Error in err, or an *Error for err at the given line.
func asError(err error, line int) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Line: line, Reason: parserReason(err)}
}
