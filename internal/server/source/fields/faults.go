// Package fields has what the conversions of all kinds of objects share: faults with the path
// of their field, the decoding of values, limits of their size, and checks of fields that
// several kinds have.
package fields

import (
	"errors"
	"fmt"
	"strings"
)

// maxFaults bounds the faults of an object that are reported.
const maxFaults = 20

// Faults holds the faults of an object, at least two, in the order of its fields. The first one is
// found with errors.As.
type Faults []*Error

// FaultsOf returns the faults of an error of a Converter.
func FaultsOf(err error) []*Error {
	if all, ok := errors.AsType[Faults](err); ok {
		return all
	}
	if fault, ok := errors.AsType[*Error](err); ok {
		return []*Error{fault}
	}
	return nil
}

func (f Faults) Error() string {
	var b strings.Builder
	for i, fault := range f {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(fault.Error())
	}
	return b.String()
}

// Unwrap returns the faults as errors.
func (f Faults) Unwrap() []error {
	out := make([]error, len(f))
	for i, fault := range f {
		out[i] = fault
	}
	return out
}

// And adds other faults after the fault. Both may be nil. It keeps at most maxFaults, and counts the
// others.
func (e *Error) And(other *Error) *Error {
	switch {
	case other == nil:
		return e
	case e == nil:
		return other
	}
	all := append(append(e.Further, other), other.Further...)
	kept := min(len(all), maxFaults-1)
	e.Further, e.Left = all[:kept], e.Left+len(all)-kept+other.Left
	other.Further, other.Left = nil, 0
	return e
}

// AllFaults joins faults, of which some may be nil.
func AllFaults(faults ...*Error) *Error {
	var all *Error
	for _, fault := range faults {
		all = all.And(fault)
	}
	return all
}

// AsError returns the faults as the error of a Converter. The last one states how many are not kept.
func (e *Error) AsError() error {
	if len(e.Further) == 0 {
		return e
	}
	all := append(Faults{e}, e.Further...)
	if last := all[len(all)-1]; e.Left > 0 {
		last.Err = fmt.Errorf("%w; %d more faults are not shown", last.Err, e.Left)
	}
	e.Further, e.Left = nil, 0
	return all
}

// Each returns the faults, each without the others.
func (e *Error) Each() []*Error {
	out := append([]*Error{e}, e.Further...)
	e.Further, e.Left = nil, 0
	return out
}

// EachText checks every text of a list.
func EachText(list string, texts []string, check func(field, text string) *Error) *Error {
	var faults *Error
	for i, text := range texts {
		faults = faults.And(check(At(list, i), text))
	}
	return faults
}

// Error reports a fault in a field of an object.
type Error struct {
	// Field is a path such as spec.servers[0].port.number or
	// metadata.labels[example.com/a]; empty means the object as a whole.
	Field string
	// TextLine is the line, from 1, within the text that the field holds;
	// 0 means the field itself.
	TextLine int
	// Line is the line of the fault in the file; 0 when there is no file.
	Line int
	Err  error
	// Kind is Unused or one of its further kinds, for a warning.
	Kind ProblemKind

	Limit     bool // the object exceeds a limit
	TextFirst int  // the line, from 1, within the text, of the first definition of a duplicate; 0 for other faults

	Further []*Error // faults of the object after this one, at most maxFaults-1
	Left    int      // the number of faults after those of further
}

func (e *Error) Error() string {
	switch {
	case e.Field == "":
		return e.Err.Error()
	case e.TextLine > 0 && e.Line == 0:
		return fmt.Sprintf("%s, line %d: %v", e.Field, e.TextLine, e.Err)
	}
	return e.Field + ": " + e.Err.Error()
}

// Unwrap returns the fault without its place.
func (e *Error) Unwrap() error { return e.Err }

// Faultf returns a fault of a field with a formatted reason.
func Faultf(field, format string, args ...any) *Error {
	return &Error{Field: field, Err: fmt.Errorf(format, args...)}
}
