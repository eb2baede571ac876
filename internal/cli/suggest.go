package cli

import (
	"fmt"

	"github.com/meshctl/meshctl/internal/nearest"
)

// didYouMean suggests the word of known that is nearest to what was written,
// or nothing when none is near.
func didYouMean(written string, known []string) string {
	word := nearest.Word(written, known)
	if word == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", word)
}
