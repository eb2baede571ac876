package output

import (
	"fmt"
	"strings"
)

// DidYouMean returns the clause that suggests NearestWord, empty without one.
func DidYouMean(written string, known []string) string {
	word := NearestWord(written, known)
	if word == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", word)
}

// NearestWord returns the known word that was most likely meant, or "". It ignores case
// and allows one edit for every three bytes, at most two. If no word is that close, it
// returns the only known word that starts with the written one, if that has three bytes
// or more.
func NearestWord(written string, known []string) string {
	written = strings.ToLower(written)
	best, least := "", min(2, (len(written)+1)/3)+1
	begins := map[string]bool{}
	for _, word := range known {
		if d := EditDistance(written, strings.ToLower(word)); d < least {
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

// EditDistance returns how many bytes must be added, removed, changed or swapped with a
// neighbour to turn a into b.
func EditDistance(a, b string) int {
	// Each row has the distances from one prefix of a to all prefixes of b.
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
