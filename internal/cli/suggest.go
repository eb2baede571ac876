package cli

import "fmt"

// didYouMean suggests the word of known that is nearest to what was written,
// or nothing when none is near.
func didYouMean(written string, known []string) string {
	nearest, least := "", 3 // at least three edits are another word
	for _, word := range known {
		if d := editDistance(written, word); d < least {
			nearest, least = word, d
		}
	}
	if nearest == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", nearest)
}

// editDistance is how many bytes must be added, removed or changed to make b
// out of a.
func editDistance(a, b string) int {
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
