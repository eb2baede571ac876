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

// Fault returns the path of the smallest part of the value that decode refuses
// when all other parts are left out; empty for the value itself. Call it when
// decode has refused the JSON of the value: it finds the place without the help
// of the decoder's message.
func (v Value) Fault(decode func(json []byte) error) string {
	return fault(v.n, "", nil, nil, decode)
}

func fault(n *yaml.Node, path string, before, after []byte, decode func([]byte) error) string {
	n = follow(n)
	open, end := "{", "}"
	switch {
	case n == nil || n.Kind == yaml.ScalarNode:
		return path
	case n.Kind == yaml.SequenceNode:
		open, end = "[", "]"
	}
	before = append(slices.Clip(before), open...)
	after = append([]byte(end), after...)
	if decode(slices.Concat(before, after)) != nil {
		return path
	}
	isList, step := n.Kind == yaml.SequenceNode, 2
	if isList {
		step = 1
	}
	for i := 0; i < len(n.Content); i += step {
		var e encoder
		child, name := n.Content[i], strconv.Itoa(i)
		if !isList {
			child, name = n.Content[i+1], n.Content[i].Value
			if e.text(n.Content[i]) != nil {
				return path
			}
			e.buf = append(e.buf, ':')
		}
		prefix := slices.Concat(before, e.buf)
		e.buf = nil
		if e.value(child, 0) != nil {
			return path
		}
		if decode(slices.Concat(prefix, e.buf, after)) != nil {
			return fault(child, joinPath(path, name, isList), prefix, after, decode)
		}
	}
	return path
}
