// Package output writes results for people and for programs: tables as plain
// text, JSON and YAML. What comes from outside cannot steer the terminal:
// control bytes, ANSI sequences and characters that reorder text are written
// as escapes.
package output

import (
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Format is how a result is written. It has the methods of a command-line
// flag's value.
type Format string

// The known formats.
const (
	FormatTable Format = "table"
	FormatJSON  Format = "json"
	FormatYAML  Format = "yaml"
)

// String is the format's name.
func (f *Format) String() string { return string(*f) }

// Type names the kind of value in help texts.
func (f *Format) Type() string { return "format" }

// Set takes a format by name; "short" is another name of "table".
func (f *Format) Set(s string) error {
	switch v := Format(s); v {
	case FormatTable, FormatJSON, FormatYAML:
		*f = v
	case "short":
		*f = FormatTable
	default:
		return fmt.Errorf("output format %q is not supported, use table, json or yaml", s)
	}
	return nil
}

// Write writes v as JSON, or as YAML for FormatYAML. Values are encoded by
// go-json-experiment/json: nil slices are [], `omitzero` leaves zero values
// out, maps are sorted, and a jsontext.Value is taken as it is.
func Write(w io.Writer, f Format, v any) error {
	b, err := json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	if f == FormatYAML {
		return writeYAML(w, b, yamlChunk)
	}
	value := jsontext.Value(b)
	if err := value.Indent(jsontext.WithIndent("    ")); err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	if _, err := w.Write(escapeQuoted(value, appendJSONEscape)); err != nil {
		return err
	}
	_, err = io.WriteString(w, "\n")
	return err
}
