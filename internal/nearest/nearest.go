// Package nearest finds the word that a person likely meant.
package nearest

import "strings"

// Word is the word of known that is nearest to what was written, whatever the
// case, or "" when none is near. Short words are near only when they differ by
// little: one edit in three bytes, and never more than two. When none differs
// by so little it is the only one that begins with what was written, of three
// bytes or more.
func Word(written string, known []string) string {
	written = strings.ToLower(written)
	best, least := "", min(2, (len(written)+1)/3)+1
	begins := map[string]bool{}
	for _, word := range known {
		if d := Distance(written, strings.ToLower(word)); d < least {
			best, least = word, d
		}
		if len(written) >= 3 && strings.HasPrefix(strings.ToLower(word), written) {
			begins[word] = true
		}
	}
	if best == "" && len(begins) == 1 {
		for word := range begins {
			return word
		}
	}
	return best
}

// Distance is how many bytes must be added, removed, changed or swapped with
// their neighbour to make b out of a.
func Distance(a, b string) int {
	// Each row goes from a start of a to each start of b.
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			change := last[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
