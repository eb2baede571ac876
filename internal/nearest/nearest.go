// Package nearest finds the word that a person likely meant.
package nearest

import "strings"

// Word is the word of known that is nearest to what was written, whatever the
// case, or "" when none is near. Short words are near only when they differ by
// little: one edit in three bytes, and never more than two.
func Word(written string, known []string) string {
	best, least := "", min(2, (len(written)+1)/3)+1
	for _, word := range known {
		if d := Distance(strings.ToLower(written), strings.ToLower(word)); d < least {
			best, least = word, d
		}
	}
	return best
}

// Distance is how many bytes must be added, removed or changed to make b out
// of a.
func Distance(a, b string) int {
	row := make([]int, len(b)+1) // from the part of a so far to each start of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
