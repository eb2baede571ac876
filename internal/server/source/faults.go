package source

import (
	"errors"
	"fmt"
	"strings"
)

// maxFaults bounds the faults of an object that are reported.
const maxFaults = 20

// Faults holds the faults of an object, at least two, in the order of its fields. The first one is
// found with errors.As.
type Faults []*FieldError

// FaultsOf returns the faults of an error of a Converter.
func FaultsOf(err error) []*FieldError {
	if all, ok := errors.AsType[Faults](err); ok {
		return all
	}
	if fault, ok := errors.AsType[*FieldError](err); ok {
		return []*FieldError{fault}
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

// and adds other faults after the fault. Both may be nil. It keeps at most maxFaults, and counts the
// others.
func (e *FieldError) and(other *FieldError) *FieldError {
	switch {
	case other == nil:
		return e
	case e == nil:
		return other
	}
	all := append(append(e.further, other), other.further...)
	kept := min(len(all), maxFaults-1)
	e.further, e.left = all[:kept], e.left+len(all)-kept+other.left
	other.further, other.left = nil, 0
	return e
}

// allFaults joins faults, of which some may be nil.
func allFaults(faults ...*FieldError) *FieldError {
	var all *FieldError
	for _, fault := range faults {
		all = all.and(fault)
	}
	return all
}

// err returns the faults as the error of a Converter. The last one states how many are not kept.
func (e *FieldError) err() error {
	if len(e.further) == 0 {
		return e
	}
	all := append(Faults{e}, e.further...)
	if last := all[len(all)-1]; e.left > 0 {
		last.Err = fmt.Errorf("%w; %d more faults are not shown", last.Err, e.left)
	}
	e.further, e.left = nil, 0
	return all
}

// each returns the faults, each without the others.
func (e *FieldError) each() []*FieldError {
	out := append([]*FieldError{e}, e.further...)
	e.further, e.left = nil, 0
	return out
}

// eachText checks every text of a list.
func eachText(list string, texts []string, check func(field, text string) *FieldError) *FieldError {
	var faults *FieldError
	for i, text := range texts {
		faults = faults.and(check(at(list, i), text))
	}
	return faults
}

// FieldError reports a fault in a field of an object.
type FieldError struct {
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

	limit     bool // the object exceeds a limit
	textFirst int  // the line, from 1, within the text, of the first definition of a duplicate; 0 for other faults

	further []*FieldError // faults of the object after this one, at most maxFaults-1
	left    int           // the number of faults after those of further
}

func (e *FieldError) Error() string {
	switch {
	case e.Field == "":
		return e.Err.Error()
	case e.TextLine > 0 && e.Line == 0:
		return fmt.Sprintf("%s, line %d: %v", e.Field, e.TextLine, e.Err)
	}
	return e.Field + ": " + e.Err.Error()
}

// Unwrap returns the fault without its place.
func (e *FieldError) Unwrap() error { return e.Err }

func faultf(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Err: fmt.Errorf(format, args...)}
}
