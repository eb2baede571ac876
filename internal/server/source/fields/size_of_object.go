package fields

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/meshctl/meshctl/internal/yamldoc"
)

// MaxEntries bounds each list and each mapping, unless entriesOf has another limit.
const MaxEntries = 10_000

// maxValues bounds all names and values of an object together, and of a text with settings.
const maxValues = 300_000

// SizeFault returns the fault of an object with too many values, or nil. It reads the text
// without memory for the values: to decode such an object would take much more.
func SizeFault(object []byte) *Error {
	d := jsontext.NewDecoder(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for values := 0; ; {
		token, err := d.ReadToken()
		switch {
		case errors.Is(err, io.EOF), err != nil && !stdjson.Valid(object): // a fault that the decoder of the object reports
			return nil
		case err != nil:
			return Limitf("", "is not an object of the Kubernetes API: %w", err)
		}
		if k := token.Kind(); k != ']' && k != '}' {
			values++
		}
		switch {
		case values > maxValues:
			return tooManyValues()
		case d.StackDepth() > yamldoc.MaxDepth:
			return Limitf("", "has values that nest more than %d deep, at most as many are accepted", yamldoc.MaxDepth)
		}
		kind, n := d.StackIndex(d.StackDepth())
		if kind == '{' {
			n /= 2 // names and values
		}
		if n > MaxEntries {
			return tooManyEntries(fieldOfPointer(d.StackPointer().Parent()), MaxEntries)
		}
	}
}

// fieldOfPointer returns the path of a field, such as spec.servers[0].hosts.
func fieldOfPointer(p jsontext.Pointer) string {
	var b strings.Builder
	for part := range p.Tokens() {
		switch {
		case strings.Trim(part, "0123456789") == "" || strings.ContainsAny(part, ".[]"):
			fmt.Fprintf(&b, "[%s]", part)
		case b.Len() == 0:
			b.WriteString(part)
		default:
			b.WriteString("." + part)
		}
	}
	return b.String()
}

// YamlSizeFault is SizeFault of a YAML document.
func YamlSizeFault(v yamldoc.Value) *Error {
	path, exceeds := v.Exceeds(MaxEntries, maxValues)
	switch {
	case !exceeds:
		return nil
	case path == "":
		return tooManyValues()
	}
	return tooManyEntries(path, MaxEntries)
}

// Limitf returns the fault of a field that exceeds a limit.
func Limitf(field, format string, args ...any) *Error {
	fault := Faultf(field, format, args...)
	fault.Limit = true
	return fault
}

func tooManyValues() *Error {
	return Limitf("", "has more than %d names and values, at most as many are accepted: split the object", maxValues)
}

func tooManyEntries(field string, most int) *Error {
	return Limitf(field, "has more than %d entries, at most as many are accepted: split the list among several objects", most)
}
