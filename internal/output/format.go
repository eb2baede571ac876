// Package output writes results for people and for programs: tables as plain
// text, JSON and YAML. What comes from outside cannot steer the terminal:
// control bytes, ANSI sequences and characters that reorder text are written
// as escapes.
package output

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Format is how a result is written. It has the methods of a command-line
// flag's value.
type Format string

// The known formats, beside jsonpath=TEMPLATE and custom-columns=COLUMNS.
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

// Formats returns the formats of a value, and with tables those of a table, too, as
// they are told to people.
func Formats(tables bool) []string {
	names := []string{string(FormatTable)}
	if tables {
		names = append(names, string(FormatWide), string(FormatName), string(FormatCSV), columnsPrefix+"COLUMNS")
	}
	return append(names, string(FormatJSON), string(FormatYAML), jsonPathPrefix+"TEMPLATE")
}

// OfTable reports whether the format is one of a table; the others are of a value.
func (f Format) OfTable() bool {
	switch f {
	case FormatTable, FormatWide, FormatName, FormatCSV:
		return true
	}
	return strings.HasPrefix(string(f), columnsPrefix)
}

// Wide reports whether the table is needed with all its columns.
func (f Format) Wide() bool { return f.OfTable() && f != FormatTable }

// ForPeople reports whether the format is a table to look at.
func (f Format) ForPeople() bool { return f == FormatTable || f == FormatWide }

// String is the format's name.
func (f *Format) String() string { return string(*f) }

// Type names the kind of value in help texts.
func (f *Format) Type() string { return "format" }

// Set takes a format by name; "short" is another name of "table".
func (f *Format) Set(s string) error {
	v := Format(s)
	template, isPath := strings.CutPrefix(s, jsonPathPrefix)
	columns, isColumns := strings.CutPrefix(s, columnsPrefix)
	switch {
	case s == "short":
		v = FormatTable
	case isPath:
		if _, err := parseJSONPath(template); err != nil {
			return err
		}
	case isColumns:
		if _, err := parseColumns(columns); err != nil {
			return err
		}
	case v == FormatJSON || v == FormatYAML || v.OfTable():
	default:
		all := Formats(true)
		last := len(all) - 1
		return fmt.Errorf("output format %q is not supported, use %s or %s", s, strings.Join(all[:last], ", "), all[last])
	}
	*f = v
	return nil
}

// Write writes v as JSON, as YAML for FormatYAML, or what a JSONPath template makes of
// it. Values are encoded by go-json-experiment/json: nil slices are [], `omitzero`
// leaves zero values out, maps are sorted, and a jsontext.Value is taken as it is.
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

// WriteTable writes a table in a format of tables.
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

// column is one that custom-columns asks for.
type column struct{ header, name string }

// parseColumns reads NAME,HEADER:NAME,….
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

// columns returns the table with the columns that a spec selects. Case does not count in
// their names, and _ and - stand for a space.
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
			return nil, &ColumnError{c.name, t.Header}
		}
		out.Header = append(out.Header, c.header)
		for i, row := range t.Rows {
			out.Rows[i] = append(out.Rows[i], row[at])
		}
	}
	return out, nil
}

// ColumnError is that a table does not have a column that was asked for.
type ColumnError struct {
	Name  string
	Known []string
}

func (e *ColumnError) Error() string {
	return fmt.Sprintf("custom-columns: the table has no column %q, its columns are %s; fields of JSON are for jsonpath", e.Name, strings.Join(e.Known, ", "))
}
