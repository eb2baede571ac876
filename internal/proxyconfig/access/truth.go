package access

import (
	"slices"
	"strconv"
	"strings"
)

// truth is the value of a condition in the logic of three values. The numbers make "and"
// the minimum and "or" the maximum.
type truth int8

const (
	no truth = iota
	unknown
	yes
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// finding is the value of a condition, and the statement about the request that it rests
// on.
type finding struct {
	truth
	why string
}

func undecidable(why string) finding { return finding{unknown, why} }

// compared returns the finding that a value of the request matches, or does not match, a
// description.
func compared(subject, value string, t truth, want string) finding {
	verb := [...]string{" is not ", " is perhaps ", " is "}[t]
	return finding{t, subject + " " + strconv.Quote(value) + verb + want}
}

// negated returns the opposite of a finding.
func (f finding) negated() finding { return finding{yes - f.truth, f.why} }

// all returns "and" of the conditions, with the first reason for its value.
func all[T any](conditions []T, judge func(T) finding) finding {
	out := finding{yes, "no condition"}
	for i, c := range conditions {
		if f := judge(c); i == 0 || f.truth < out.truth {
			out = f
		}
	}
	return out
}

// maxReasons bounds the reasons of one finding.
const maxReasons = 3

// anyOf returns "or" of the conditions: with the first reason for its value, or, if none is
// true, with the reasons of several.
func anyOf[T any](conditions []T, judge func(T) finding) finding {
	out := finding{no, "no condition"}
	var reasons []string
	for i, c := range conditions {
		f := judge(c)
		switch {
		case f.truth == yes:
			return f
		case i == 0 || f.truth > out.truth:
			out, reasons = f, []string{f.why}
		case f.truth == out.truth && !slices.Contains(reasons, f.why):
			reasons = append(reasons, f.why)
		}
	}
	if len(reasons) > maxReasons {
		reasons = append(reasons[:maxReasons], "and "+strconv.Itoa(len(reasons)-maxReasons)+" more")
	}
	if len(reasons) > 1 {
		out.why = strings.Join(reasons, ", ")
	}
	return out
}
