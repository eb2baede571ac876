// Package output writes results for people and programs: tables as plain text, CSV,
// JSON, YAML and JSONPath. Text from other programs cannot control the terminal:
// control bytes, ANSI sequences and characters that reorder text become escapes.
package output

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Format is the format of a result.
type Format string

// The formats, in addition to jsonpath=TEMPLATE and custom-columns=COLUMNS.
const (
	FormatTable Format = "table"
	FormatWide  Format = "wide" // the table with all its columns
	FormatName  Format = "name" // one column of the table, see Table.Name
	FormatCSV   Format = "csv"  // the wide table
	FormatJSON  Format = "json"
	FormatYAML  Format = "yaml"
)

const (
	jsonPathPrefix = "jsonpath="
	columnsPrefix  = "custom-columns="
)

// Formats returns the names of the formats of a value, and with tables the formats of a
// table, for help and errors.
func Formats(tables bool) []string {
	names := []string{string(FormatTable)}
	if tables {
		names = append(names, string(FormatWide), string(FormatName), string(FormatCSV), columnsPrefix+"COLUMNS")
	}
	return append(names, string(FormatJSON), string(FormatYAML), jsonPathPrefix+"TEMPLATE")
}

// OfTable reports whether the format is for a table. All others are for a value.
func (f Format) OfTable() bool {
	switch f {
	case FormatTable, FormatWide, FormatName, FormatCSV:
		return true
	}
	return strings.HasPrefix(string(f), columnsPrefix)
}

// Wide reports whether the format needs all columns of the table.
func (f Format) Wide() bool { return f.OfTable() && f != FormatTable }

// ForPeople reports whether the format is a table for people to read.
func (f Format) ForPeople() bool { return f == FormatTable || f == FormatWide }

// ParseFormat returns the format of a name. "short" is another name of "table". An error
// of ErrFormat is about the name, others are about the template or the columns.
func ParseFormat(s string) (Format, error) {
	template, isPath := strings.CutPrefix(s, jsonPathPrefix)
	columns, isColumns := strings.CutPrefix(s, columnsPrefix)
	var err error
	switch f := Format(s); {
	case s == "short":
		return FormatTable, nil
	case isPath:
		_, err = parseJSONPath(template)
	case isColumns:
		_, err = parseColumns(columns)
	case f != FormatJSON && f != FormatYAML && !f.OfTable():
		err = ErrFormat
	}
	return Format(s), err
}

// ErrFormat reports that there is no such format.
var ErrFormat = errors.New("unknown format")

// Write writes v as JSON, as YAML, or as the output of a JSONPath template. Values are
// encoded by go-json-experiment/json: nil slices are [], `omitzero` omits zero values,
// maps are sorted, and a jsontext.Value is copied.
func Write(w io.Writer, f Format, v any) error {
	b, err := json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	if template, ok := strings.CutPrefix(string(f), jsonPathPrefix); ok {
		return writeJSONPath(w, template, b)
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

// WriteTable writes a table in a format for tables.
func WriteTable(w io.Writer, f Format, t *Table) error {
	if columns, ok := strings.CutPrefix(string(f), columnsPrefix); ok {
		custom, err := t.columns(columns)
		if err != nil {
			return err
		}
		return custom.Write(w)
	}
	switch f {
	case FormatName:
		return t.writeNames(w)
	case FormatCSV:
		return t.writeCSV(w)
	}
	return t.Write(w)
}

// column is one column of custom-columns.
type column struct{ header, name string }

// parseColumns parses NAME,HEADER:NAME,….
func parseColumns(spec string) ([]column, error) {
	var out []column
	for part := range strings.SplitSeq(spec, ",") {
		header, name, renamed := strings.Cut(part, ":")
		if !renamed {
			header, name = strings.ToUpper(part), part
		}
		header, name = strings.TrimPrefix(strings.TrimSpace(header), "."), strings.TrimPrefix(strings.TrimSpace(name), ".")
		if header == "" || name == "" {
			return nil, fmt.Errorf("custom-columns %q: want COLUMN or HEADER:COLUMN, separated by commas", spec)
		}
		out = append(out, column{header, name})
	}
	return out, nil
}

// columns returns the table with the columns of a spec. Names ignore case, and _ and -
// match a space.
func (t *Table) columns(spec string) (*Table, error) {
	selected, err := parseColumns(spec)
	if err != nil {
		return nil, err
	}
	plain := strings.NewReplacer("_", " ", "-", " ")
	out := &Table{NoHeader: t.NoHeader, Gap: t.Gap, Rows: make([][]string, len(t.Rows))}
	for _, c := range selected {
		at := slices.IndexFunc(t.Header, func(h string) bool {
			return strings.EqualFold(plain.Replace(h), plain.Replace(c.name))
		})
		if at < 0 {
			return nil, fmt.Errorf("%w %q, its columns are %s; fields of JSON are for jsonpath", ErrColumn, c.name, strings.Join(t.Header, ", "))
		}
		out.Header = append(out.Header, c.header)
		for i, row := range t.Rows {
			out.Rows[i] = append(out.Rows[i], row[at])
		}
	}
	return out, nil
}

// ErrColumn reports a column that the table does not have.
var ErrColumn = errors.New("custom-columns: the table has no column")
