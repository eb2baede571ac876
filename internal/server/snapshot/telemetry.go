package snapshot

import "strings"

// QuotedText returns the text of a CEL expression that is a text in quotes, without escapes. ok is
// false for other expressions.
func QuotedText(expression string) (text string, ok bool) {
	n := len(expression)
	if n < 2 || expression[0] != '"' && expression[0] != '\'' || expression[n-1] != expression[0] {
		return "", false
	}
	text = expression[1 : n-1]
	return text, !strings.ContainsAny(text, "\"'\\\r\n")
}
