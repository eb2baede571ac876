package output

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape returns s with every character that is not printable as an escape: \n, \x1b,
// \u202e. Invalid UTF-8 becomes \xNN. Backslashes in s stay as they are, so that
// regular expressions remain readable; the result cannot be decoded.
func Escape(s string) string {
	if isPlain(s) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if printable(r, n) {
			b.WriteString(s[:n])
		} else {
			q := strconv.Quote(s[:n])
			b.WriteString(q[1 : len(q)-1])
		}
		s = s[n:]
	}
	return b.String()
}

// EscapeLines escapes each line and joins them.
func EscapeLines(lines []string) string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = Escape(line)
	}
	return strings.Join(out, "\n")
}

func printable(r rune, size int) bool {
	return strconv.IsPrint(r) && (r != utf8.RuneError || size > 1)
}

// isPlain reports whether s is printable ASCII, as nearly every cell is.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// escapeQuoted replaces each character that is not printable, in JSON or in YAML whose
// unusual strings are in double quotes, by the output of escape. Line ends stay.
func escapeQuoted(text []byte, escape func([]byte, rune) []byte) []byte {
	i := bytes.IndexFunc(text, mustEscape)
	if i < 0 {
		return text
	}
	out := make([]byte, 0, len(text)+len(text)/8)
	for i >= 0 {
		r, n := utf8.DecodeRune(text[i:])
		out = escape(append(out, text[:i]...), r)
		text = text[i+n:]
		i = bytes.IndexFunc(text, mustEscape)
	}
	return append(out, text...)
}

func mustEscape(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }

// appendJSONEscape appends r as a JSON escape: \u202e, a surrogate pair above U+FFFF.
func appendJSONEscape(b []byte, r rune) []byte {
	for _, unit := range utf16.AppendRune(nil, r) {
		b = fmt.Appendf(b, `\u%04x`, unit)
	}
	return b
}

// appendYAMLEscape appends r as a YAML escape. YAML has no surrogate pairs.
func appendYAMLEscape(b []byte, r rune) []byte { return fmt.Appendf(b, `\U%08x`, r) }

// EscapeJSON returns JSON of the same value in which every character is printable.
func EscapeJSON(text []byte) []byte { return escapeQuoted(text, appendJSONEscape) }

// Text returns a writer that escapes text by Escape, except line ends and tabs.
func Text(to io.Writer) io.Writer { return escaper{to, escapeText} }

// JSONLines returns a writer that escapes lines of JSON by EscapeJSON. Each Write must
// have whole lines.
func JSONLines(to io.Writer) io.Writer { return escaper{to, EscapeJSON} }

type escaper struct {
	to     io.Writer
	escape func([]byte) []byte
}

func (e escaper) Write(b []byte) (int, error) {
	if _, err := e.to.Write(e.escape(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

func escapeText(text []byte) []byte {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for j := range cells {
			cells[j] = Escape(cells[j])
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return []byte(strings.Join(lines, "\n"))
}
