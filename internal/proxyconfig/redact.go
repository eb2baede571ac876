package proxyconfig

import (
	"encoding/base64"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Redacted values, as Envoy writes them.
const (
	redacted       = "[redacted]"
	redactedBase64 = "W3JlZGFjdGVkXQ=="
)

// Beginnings and ends of PEM blocks, and the beginning of one in base64.
const (
	pemBegin, pemEnd = "-----BEGIN ", "-----END "
	pemDashes        = "-----"
	pemBase64        = "LS0tLS1CRUdJTi" // -----BEGIN
)

// redactKeys replaces the PEM blocks with private keys in a string of a dump, which is
// bytes in base64 or text. A chain of certificates may come with its key, which Envoy
// prints. The rest of the string stays.
func redactKeys(s string, isBytes bool) string {
	if isBytes || strings.HasPrefix(s, pemBase64) { // extensions that are not known do not tell bytes
		plain := strings.NewReplacer("-", "+", "_", "/", "=", "").Replace(s)
		if data, err := base64.RawStdEncoding.DecodeString(plain); err == nil {
			if text := redactBlocks(string(data)); text != string(data) {
				return base64.StdEncoding.EncodeToString([]byte(text))
			}
		}
	}
	return redactBlocks(s)
}

// redactBlocks redacts a block without an end up to the end of the text.
func redactBlocks(text string) string {
	var out strings.Builder
	rest := text
	for {
		before, after, found := strings.Cut(rest, pemBegin)
		kind, body, whole := strings.Cut(after, pemDashes)
		if !found || !whole {
			break
		}
		if !strings.Contains(kind, "PRIVATE KEY") {
			out.WriteString(before + pemBegin)
			rest = after
			continue
		}
		out.WriteString(before + redacted)
		_, rest, _ = strings.Cut(body, pemEnd)
		_, rest, _ = strings.Cut(rest, pemDashes)
	}
	if out.Len() == 0 {
		return text
	}
	return out.String() + rest
}

// safeToken returns a string or number, or its replacement if it is redacted.
func safeToken(tok jsontext.Token, isBytes, secret bool) (safe jsontext.Token, redacts bool) {
	switch k := tok.Kind(); {
	case k == jsontext.KindString && !secret:
		text := tok.String()
		safe := redactKeys(text, isBytes)
		return jsontext.String(safe), safe != text
	case k == jsontext.KindString && isBytes:
		return jsontext.String(redactedBase64), true
	case k == jsontext.KindString:
		return jsontext.String(redacted), true
	}
	return jsontext.Int(0), secret && tok.Kind() == jsontext.KindNumber
}
