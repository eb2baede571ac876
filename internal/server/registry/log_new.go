package registry

import (
	"fmt"
	"slices"
)

// maxLogged is the number of new problems of one kind that are logged after a change.
const maxLogged = 16

// logNew calls log for each problem that was not there before, at most maxLogged times, and
// more with the number of the others.
func logNew[T any](now []T, before func(T) bool, log func(T), more func(n int)) {
	n := 0
	for _, p := range now {
		if before(p) {
			continue
		}
		if n++; n <= maxLogged {
			log(p)
		}
	}
	if n > maxLogged {
		more(n - maxLogged)
	}
}

// describeNew returns a line for each problem, sorted and each once, and logs as logNew does.
func describeNew[T interface {
	comparable
	fmt.Stringer
}](before, now []T, log func(T), more func(n int)) []string {
	known := make(set[T], len(before))
	for _, p := range before {
		known.add(p)
	}
	logNew(now, known.has, log, more)
	lines := make([]string, len(now))
	for i, p := range now {
		lines[i] = p.String()
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}
