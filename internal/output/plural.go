package output

import "fmt"

// Plural returns a number with its noun: 1 error, 2 errors.
func Plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
