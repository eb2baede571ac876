package proxyconfig

import (
	"fmt"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/output"
)

// Resource holds the resource of a row as proto JSON; nil unless asked for.
type Resource struct{ JSON jsontext.Value }

// keep sets the JSON if it is wanted.
func (r *Resource) keep(raw jsontext.Value, of proto.Message, wanted bool) (err error) {
	if wanted {
		r.JSON, err = protoJSON(raw, of)
	}
	return err
}

func (r Resource) json() jsontext.Value { return r.JSON }

// Resources returns the JSON of rows that were read with resources. Rows that describe no
// resource in use have none.
func Resources[T interface{ json() jsontext.Value }](rows []T) []jsontext.Value {
	out := make([]jsontext.Value, 0, len(rows))
	for _, row := range rows {
		if row.json() != nil {
			out = append(out, row.json())
		}
	}
	return out
}

// readRows reads a section that every Envoy fills and returns its rows, sorted. add appends
// the row of a resource, if it is selected. A section without any resource is an error.
func readRows[T any](r io.Reader, s *section, compare func(a, b T) int, add func(rows []T, list string, raw jsontext.Value) ([]T, error)) ([]T, error) {
	var rows []T
	empty := true
	err := s.read(r, func(list string, raw jsontext.Value) (err error) {
		empty = false
		rows, err = add(rows, list, raw)
		return err
	})
	if err == nil && empty {
		err = fmt.Errorf("no %s found", s.what)
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(rows, compare)
	return rows, nil
}

// Seen counts the entries that a filter looked at, also those that it does not select. A nil Seen
// counts nothing.
type Seen int

func (s *Seen) add() {
	if s != nil {
		*s++
	}
}

// addNames adds a column NAME to a table.
func addNames(t *output.Table, at int, names []string) {
	t.Header = slices.Insert(t.Header, at, "NAME")
	for i, name := range names {
		t.Rows[i] = slices.Insert(t.Rows[i], at, name)
	}
}
