package yamldoc

import (
	"bytes"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// Decode returns text that begins with a byte order mark, in UTF-8 or UTF-16, as UTF-8 without the
// mark. Some programs of Windows write such text. Other text stays as it is.
func Decode(text []byte) []byte {
	for _, mark := range []string{"\xef\xbb\xbf", "\xff\xfe", "\xfe\xff"} {
		if !bytes.HasPrefix(text, []byte(mark)) {
			continue
		}
		if out, _, err := transform.Bytes(unicode.BOMOverride(transform.Nop), text); err == nil {
			return out
		}
	}
	return text
}
