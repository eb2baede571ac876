package yamldoc

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// parse parses a document that keeps to the part of YAML in which people
// and programs write nearly all objects: block mappings and lists, keys of
// letters, digits and "_./-", values on one line without escapes, flow
// collections on one line, comments. It is ten times as fast as the whole
// grammar. Of any other text, right or wrong, it says !ok: then the YAML
// library decides, and names the fault. What it does accept gives the nodes
// that the library gives, lines of the file included, and has nothing that a
// preparer would refuse.
func (p *plainParser) parse(c Chunk) (root *yaml.Node, ok bool) {
	for _, b := range c.Text {
		if (b < ' ' || b > '~') && b != '\n' {
			return nil, false
		}
	}
	*p = plainParser{text: string(c.Text), line: c.Line - 1, nodes: p.nodes[:0], stack: p.stack[:0]}
	if !p.nextLine() || p.atDocument() && !p.nextLine() {
		return nil, false
	}
	root = p.block(0)
	return root, root != nil && p.start == len(p.text)
}

// Nodes are made many at once: these are the least and the most.
const (
	minSlab = 16
	maxSlab = 1024
)

// plainParser stands at pos in the line from start to end, which has indent
// spaces before its text; behind a dash that text is the item's. At the end of
// the document start is that of the text.
type plainParser struct {
	text       string
	start, pos int
	end        int // of the line without trailing spaces
	next       int // start of the line after it
	indent     int
	line       int          // of the file
	nodes      []yaml.Node  // used again by the next call of parse
	stack      []*yaml.Node // children of nodes that are not complete
}

// nextLine goes to the next line with text, or to the end.
func (p *plainParser) nextLine() bool {
	for p.start = p.next; p.start < len(p.text); p.start = p.next {
		p.line++
		p.end = len(p.text)
		if i := strings.IndexByte(p.text[p.start:], '\n'); i >= 0 {
			p.end = p.start + i
		}
		p.next = min(p.end+1, len(p.text))
		for p.end > p.start && p.text[p.end-1] == ' ' {
			p.end--
		}
		p.pos = p.start
		p.skipSpaces()
		if p.indent = p.pos - p.start; p.pos < p.end && p.text[p.pos] != '#' {
			return true
		}
	}
	p.indent = -1
	return false
}

func (p *plainParser) skipSpaces() {
	for p.pos < p.end && p.text[p.pos] == ' ' {
		p.pos++
	}
}

func (p *plainParser) atDocument() bool { return p.text[p.start:p.end] == "---" }

// peek is the next byte of the line; 0 at its end.
func (p *plainParser) peek() byte {
	if p.pos < p.end {
		return p.text[p.pos]
	}
	return 0
}

// endsWord reports whether a line has a space or its end at i.
func (p *plainParser) endsWord(i int) bool { return i == p.end || p.text[i] == ' ' }

func (p *plainParser) atDash() bool { return p.peek() == '-' && p.endsWord(p.pos+1) }

// lineEnds goes past spaces and a comment, and to the next line with text.
func (p *plainParser) lineEnds() bool {
	before := p.pos
	p.skipSpaces()
	if p.pos < p.end && (p.text[p.pos] != '#' || p.pos == before) {
		return false
	}
	p.nextLine()
	return true
}

func (p *plainParser) node(kind yaml.Kind, tag, value string) *yaml.Node {
	if len(p.nodes) == cap(p.nodes) {
		p.nodes = make([]yaml.Node, 0, min(max(2*cap(p.nodes), minSlab), maxSlab))
	}
	p.nodes = append(p.nodes, yaml.Node{Kind: kind, Tag: tag, Value: value, Line: p.line})
	return &p.nodes[len(p.nodes)-1]
}

// collect makes what was pushed since mark the content of the node; nil when a
// mapping has a key twice.
func (p *plainParser) collect(n *yaml.Node, mark int) *yaml.Node {
	children := p.stack[mark:]
	if n.Kind == yaml.MappingNode && keyTwice(children) {
		return nil
	}
	if len(children) > 0 {
		n.Content = append(make([]*yaml.Node, 0, len(children)), children...)
	}
	p.stack = p.stack[:mark]
	return n
}

func keyTwice(pairs []*yaml.Node) bool {
	if len(pairs) > 32 {
		seen := make(map[string]bool, len(pairs)/2)
		for i := 0; i < len(pairs); i += 2 {
			if seen[pairs[i].Value] {
				return true
			}
			seen[pairs[i].Value] = true
		}
		return false
	}
	for i := 2; i < len(pairs); i += 2 {
		for j := 0; j < i; j += 2 {
			if pairs[i].Value == pairs[j].Value {
				return true
			}
		}
	}
	return false
}

// block parses the mapping or list that the line begins with.
func (p *plainParser) block(depth int) *yaml.Node {
	switch {
	case depth >= MaxDepth: // its children would be too deep
		return nil
	case p.atDash():
		return p.list(depth)
	}
	return p.mapping(depth)
}

func (p *plainParser) mapping(depth int) *yaml.Node {
	n, indent, mark := p.node(yaml.MappingNode, "!!map", ""), p.indent, len(p.stack)
	for p.indent == indent {
		key := p.key()
		if key == nil {
			return nil
		}
		value := p.value(indent, depth+1)
		if value == nil {
			return nil
		}
		p.stack = append(p.stack, key, value)
	}
	if p.indent > indent {
		return nil
	}
	return p.collect(n, mark)
}

func isKeyByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '.' || b == '/' || b == '-'
}

// keyEnd is where the colon of a key at pos is; 0 when there is no key.
func (p *plainParser) keyEnd() int {
	i := p.pos
	for i < p.end && isKeyByte(p.text[i]) {
		i++
	}
	const most = 512 // well below what the grammar allows
	if i == p.pos || i == p.end || p.text[i] != ':' || !p.endsWord(i+1) || i-p.pos > most {
		return 0
	}
	if c := p.peek(); c == '.' || c == '/' || c == '-' {
		return 0
	}
	return i
}

// key takes a key with its colon.
func (p *plainParser) key() *yaml.Node {
	end := p.keyEnd()
	if end == 0 {
		return nil
	}
	key := p.node(yaml.ScalarNode, "", p.text[p.pos:end])
	p.pos = end + 1
	return key
}

// value parses what follows a key of a mapping.
func (p *plainParser) value(indent, depth int) *yaml.Node {
	p.skipSpaces()
	if c := p.peek(); c != 0 && c != '#' {
		return p.inLine(indent, depth)
	}
	line := p.line
	p.nextLine()
	if p.indent > indent || p.indent == indent && p.atDash() {
		return p.block(depth)
	}
	null := p.node(yaml.ScalarNode, "!!null", "")
	null.Line = line
	return null
}

func (p *plainParser) list(depth int) *yaml.Node {
	n, indent, mark := p.node(yaml.SequenceNode, "!!seq", ""), p.indent, len(p.stack)
	for p.indent == indent && p.atDash() {
		p.pos++
		p.skipSpaces()
		var item *yaml.Node
		if p.atDash() || p.keyEnd() > 0 {
			p.indent = p.pos - p.start
			item = p.block(depth + 1)
		} else {
			item = p.inLine(indent, depth+1)
		}
		if item == nil {
			return nil
		}
		p.stack = append(p.stack, item)
	}
	if p.indent > indent {
		return nil
	}
	return p.collect(n, mark)
}

// inLine parses a value that ends with its line, in a collection of the
// indent: a line of more would continue it.
func (p *plainParser) inLine(indent, depth int) *yaml.Node {
	var n *yaml.Node
	switch c := p.peek(); {
	case c == '"' || c == '\'' || c == '[' || c == '{':
		n = p.flow(depth)
	case isKeyByte(c) && !p.atDash() || c == '~':
		n = p.words()
	}
	if n == nil || !p.lineEnds() || p.indent > indent {
		return nil
	}
	return n
}

// words takes an unquoted value outside of flow collections.
func (p *plainParser) words() *yaml.Node {
	end := p.pos
	for i := p.pos; i < p.end; i++ {
		switch c := p.text[i]; {
		case c == ':' && p.endsWord(i+1):
			return nil
		case c == '#' && p.text[i-1] == ' ':
			return p.scalar(end)
		case c != ' ':
			end = i + 1
		}
	}
	return p.scalar(end)
}

// scalar takes the unquoted value that ends there.
func (p *plainParser) scalar(end int) *yaml.Node {
	value := p.text[p.pos:end]
	p.pos = end
	return p.node(yaml.ScalarNode, tagOf(value), value)
}

// tagOf is the type of the commonest unquoted values; empty, which lets the
// library find out, for others.
func tagOf(value string) string {
	digits, dots := 0, 0
	for i := range len(value) {
		switch c := value[i]; {
		case c >= '0' && c <= '9':
			digits++
		case c == '.':
			dots++
		}
	}
	switch first := value[0]; {
	case digits == len(value) && digits <= 18 && (first != '0' || digits == 1):
		return "!!int"
	case digits+dots == len(value) && dots > 1 && first != '.':
		return "!!str" // such as an address
	case value == "true" || value == "false":
		return "!!bool"
	case first >= 'a' && first <= 'z' && !strings.ContainsRune("yntfo", rune(first)),
		first >= 'A' && first <= 'Z' && !strings.ContainsRune("YNTFO", rune(first)):
		return "!!str"
	}
	return ""
}

// flow parses a quoted value or a flow collection, up to its end.
func (p *plainParser) flow(depth int) *yaml.Node {
	switch c := p.peek(); c {
	case '"', '\'':
		return p.quoted(c)
	case '[', '{':
		if depth >= MaxDepth {
			return nil
		}
		return p.collection(c, depth)
	}
	i := p.pos
	for i < p.end && isKeyByte(p.text[i]) {
		i++
	}
	if i == p.pos || p.peek() == '-' {
		return nil
	}
	return p.scalar(i)
}

func (p *plainParser) quoted(quote byte) *yaml.Node {
	rest := p.text[p.pos+1 : p.end]
	i := strings.IndexByte(rest, quote)
	if i < 0 || strings.IndexByte(rest[:i], '\\') >= 0 {
		return nil
	}
	n := p.node(yaml.ScalarNode, "!!str", rest[:i])
	n.Style = yaml.DoubleQuotedStyle
	if quote == '\'' {
		n.Style = yaml.SingleQuotedStyle
	}
	if p.pos += i + 2; p.peek() == quote {
		return nil // a quote within single quotes
	}
	return n
}

// collection parses a flow list, or a flow mapping, that ends in its line.
func (p *plainParser) collection(open byte, depth int) *yaml.Node {
	n, closing := p.node(yaml.SequenceNode, "!!seq", ""), byte(']')
	if open == '{' {
		n.Kind, n.Tag, closing = yaml.MappingNode, "!!map", '}'
	}
	n.Style = yaml.FlowStyle
	mark := len(p.stack)
	p.pos++
	p.skipSpaces()
	for first := true; p.peek() != closing; first = false {
		if !first {
			if p.peek() != ',' {
				return nil
			}
			p.pos++
			p.skipSpaces()
		}
		if open == '{' {
			key := p.key()
			if key == nil {
				return nil
			}
			p.stack = append(p.stack, key)
			p.skipSpaces()
		}
		item := p.flow(depth + 1)
		if item == nil {
			return nil
		}
		p.stack = append(p.stack, item)
		p.skipSpaces()
	}
	p.pos++
	return p.collect(n, mark)
}
