package yamldoc_test

import (
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/meshctl/meshctl/internal/yamldoc"
)

// TestSplitEncodings: a stream in any encoding with a byte order mark has the same documents as in
// UTF-8.
func TestSplitEncodings(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("a: grün 🚀\n---\nb: 1\n---\n", 1000)
	utf16Of := func(order binary.AppendByteOrder) string {
		var out []byte
		for _, unit := range utf16.Encode([]rune("\ufeff" + text)) {
			out = order.AppendUint16(out, unit)
		}
		return string(out)
	}
	for name, in := range map[string]string{
		"UTF-8": text, "UTF-8 with a mark": "\ufeff" + text,
		"UTF-16, little end first": utf16Of(binary.LittleEndian), "UTF-16, big end first": utf16Of(binary.BigEndian),
	} {
		n := 0
		for chunk := range yamldoc.Split([]byte(in)) {
			doc, err := yamldoc.Parse(chunk)
			if n++; err != nil || n%2 == 1 && n < 2000 && doc.Get("a").Text() != "grün 🚀" {
				t.Fatalf("%s: document %d is %q, %v", name, n, chunk.Text, err)
			}
		}
		if n != 2001 {
			t.Errorf("%s: %d documents", name, n)
		}
		if got := yamldoc.Decode([]byte(in)); string(got) != text {
			t.Errorf("%s: got %.20q", name, got)
		}
	}
	for _, in := range []string{"", "a", "\xff", "\xef\xbb", "\xff\xfe", "\xff\xfea", "\xff\xfe\x00\xd8"} {
		_ = yamldoc.Decode([]byte(in)) // does not panic
	}
}
