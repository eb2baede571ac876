package yamldoc

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// JSON renders the value as JSON. Dates and binary values become their text as
// written; keys are always strings. Errors are of type *Error.
func (v Value) JSON() ([]byte, error) {
	if v.n == nil {
		return []byte("null"), nil
	}
	e := encoder{make([]byte, 0, 1024)} // most objects are smaller
	if err := e.value(v.n, 0); err != nil {
		return nil, asError(err, v.n.Line)
	}
	return e.buf, nil
}

type encoder struct{ buf []byte }

func (e *encoder) value(n *yaml.Node, depth int) error {
	if depth > MaxDepth {
		return &Error{Line: n.Line, Reason: fmt.Sprintf("values nest more than %d deep", MaxDepth)}
	}
	switch n.Kind {
	case yaml.AliasNode:
		return e.value(n.Alias, depth+1)
	case yaml.MappingNode:
		return e.mapping(n, depth)
	case yaml.SequenceNode:
		e.buf = append(e.buf, '[')
		for i, c := range n.Content {
			if i > 0 {
				e.buf = append(e.buf, ',')
			}
			if err := e.value(c, depth+1); err != nil {
				return err
			}
		}
		e.buf = append(e.buf, ']')
		return nil
	}
	return e.scalar(n)
}

func (e *encoder) mapping(n *yaml.Node, depth int) error {
	e.buf = append(e.buf, '{')
	for i := 0; i < len(n.Content); i += 2 {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		if err := e.text(n.Content[i]); err != nil {
			return err
		}
		e.buf = append(e.buf, ':')
		if err := e.value(n.Content[i+1], depth+1); err != nil {
			return err
		}
	}
	e.buf = append(e.buf, '}')
	return nil
}

func (e *encoder) text(n *yaml.Node) (err error) {
	if isPlainText(n.Value) {
		e.buf = append(append(append(e.buf, '"'), n.Value...), '"')
		return nil
	}
	e.buf, err = jsontext.AppendQuote(e.buf, n.Value)
	if err != nil {
		return &Error{Line: n.Line, Reason: "text is not UTF-8"}
	}
	return nil
}

// isPlainText reports whether the text needs no escapes in JSON.
func isPlainText(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// isPlainNumber reports whether the text is a JSON integer without a sign.
func isPlainNumber(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return len(s) == 1 || len(s) > 1 && s[0] != '0'
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

func (e *encoder) scalar(n *yaml.Node) error {
	switch n.ShortTag() {
	case "!!null":
		e.buf = append(e.buf, "null"...)
		return nil
	case "!!bool":
		if n.Value == "true" || n.Value == "false" {
			e.buf = append(e.buf, n.Value...)
			return nil
		}
		var b bool // of a value with a tag
		if err := n.Decode(&b); err != nil {
			return asError(err, n.Line)
		}
		e.buf = strconv.AppendBool(e.buf, b)
		return nil
	case "!!int", "!!float":
		if isPlainNumber(n.Value) || jsonNumber.MatchString(n.Value) {
			e.buf = append(e.buf, n.Value...)
			return nil
		}
		return e.number(n)
	}
	return e.text(n)
}

// number writes numbers that JSON spells differently, such as 0x10 and .5.
func (e *encoder) number(n *yaml.Node) error {
	var i int64
	if n.ShortTag() == "!!int" && n.Decode(&i) == nil {
		e.buf = strconv.AppendInt(e.buf, i, 10)
		return nil
	}
	var f float64
	if err := n.Decode(&f); err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return &Error{Line: n.Line, Reason: fmt.Sprintf("%s is not a number that JSON knows", n.Value)}
	}
	e.buf = strconv.AppendFloat(e.buf, f, 'g', -1, 64)
	return nil
}

// Refusal is a part of a value that a decoder refuses.
type Refusal struct {
	Path string // empty for the value itself
	Err  error
}

// Refusals returns the smallest parts of the value that decode refuses when all other
// parts are left out, in order, at least one and at most as many as given. err is the error
// with which decode refuses the JSON of the value. Refusals finds the places without the
// help of the decoder's messages.
func (v Value) Refusals(err error, most int, decode func(json []byte) error) []Refusal {
	s := search{most: most, decode: decode}
	s.in(v.n, "", nil, nil, err)
	return s.found
}

// search looks for the parts of a value that a decoder refuses.
type search struct {
	most   int
	decode func([]byte) error
	found  []Refusal
}

// in looks for the parts of a node, which stands between two texts. err is the error of the decoder
// with the whole node.
func (s *search) in(n *yaml.Node, path string, before, after []byte, err error) {
	n = follow(n)
	known := len(s.found)
	open, end := "{", "}"
	switch {
	case n == nil || n.Kind == yaml.ScalarNode:
		s.found = append(s.found, Refusal{path, err})
		return
	case n.Kind == yaml.SequenceNode:
		open, end = "[", "]"
	}
	before = append(slices.Clip(before), open...)
	after = append([]byte(end), after...)
	if s.decode(slices.Concat(before, after)) != nil {
		s.found = append(s.found, Refusal{path, err})
		return
	}
	isList, step := n.Kind == yaml.SequenceNode, 2
	if isList {
		step = 1
	}
	for i := 0; i < len(n.Content) && len(s.found) < s.most; i += step {
		var e encoder
		child, name := n.Content[i], strconv.Itoa(i)
		if !isList {
			child, name = n.Content[i+1], n.Content[i].Value
			if e.text(n.Content[i]) != nil {
				break
			}
			e.buf = append(e.buf, ':')
		}
		prefix := slices.Concat(before, e.buf)
		e.buf = nil
		if e.value(child, 0) != nil {
			break
		}
		if err := s.decode(slices.Concat(prefix, e.buf, after)); err != nil {
			s.in(child, joinPath(path, name, isList), prefix, after, err)
		}
	}
	if len(s.found) == known { // the parts do not fit together
		s.found = append(s.found, Refusal{path, err})
	}
}
