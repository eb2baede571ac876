package registry

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
