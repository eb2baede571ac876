package access

import (
	"net/http"
	"strings"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// refusal is the reason why Envoy answers a request itself, and the status.
type refusal struct {
	why    string
	status int
}

// normalize applies the path options of a connection manager.
func normalize(path string, m *hcmv3.HttpConnectionManager) (normal string, refused *refusal) {
	if strings.Contains(path, "#") {
		return path, &refusal{"the path has a fragment", http.StatusBadRequest}
	}
	switch m.GetPathWithEscapedSlashesAction() {
	case hcmv3.HttpConnectionManager_KEEP_UNCHANGED, hcmv3.HttpConnectionManager_IMPLEMENTATION_SPECIFIC_DEFAULT:
	default:
		plain, found := unescapeSlashes(path)
		if found {
			switch m.GetPathWithEscapedSlashesAction() {
			case hcmv3.HttpConnectionManager_REJECT_REQUEST:
				return path, &refusal{"the path has escaped slashes", http.StatusBadRequest}
			case hcmv3.HttpConnectionManager_UNESCAPE_AND_REDIRECT:
				refused = &refusal{"a path with escaped slashes is redirected", http.StatusTemporaryRedirect}
			}
		}
		path = plain
	}
	if m.GetNormalizePath().GetValue() {
		canonical, valid := canonicalPath(path)
		if !valid {
			return path, &refusal{"the path is not valid", http.StatusBadRequest}
		}
		path = canonical
	}
	if m.GetMergeSlashes() {
		path = mergeSlashes(path)
	}
	return path, refused
}

var escapedSlashes = strings.NewReplacer("%2F", "/", "%2f", "/", "%5C", `\`, "%5c", `\`)

func unescapeSlashes(path string) (string, bool) {
	path, query, hasQuery := strings.Cut(path, "?")
	plain := escapedSlashes.Replace(path)
	return join(plain, query, hasQuery), plain != path
}

func mergeSlashes(path string) string {
	path, query, hasQuery := strings.Cut(path, "?")
	for strings.Contains(path, "//") {
		path = strings.ReplaceAll(path, "//", "/")
	}
	return join(path, query, hasQuery)
}

func join(path, query string, hasQuery bool) string {
	if hasQuery {
		return path + "?" + query
	}
	return path
}

// canonicalPath removes dot segments, turns backslashes into slashes, decodes escaped
// characters that need no escape, and escapes those that do. The query stays.
func canonicalPath(path string) (canonical string, valid bool) {
	path, query, hasQuery := strings.Cut(path, "?")
	valid = true
	var out []byte
	for i := 0; i < len(path); {
		if atSegment := len(out) > 0 && out[len(out)-1] == '/'; atSegment {
			dots, length := leadingDots(path[i:])
			after := path[i+length:]
			if dots > 0 && dots <= 2 && (after == "" || after[0] == '/' || after[0] == '\\') {
				if dots == 2 {
					out = parent(out)
				}
				i += length
				if after != "" {
					i++ // the slash after the dots
				}
				continue
			}
		}
		c := path[i]
		switch {
		case c == '\\':
			out = append(out, '/')
			i++
		case c == '%':
			decoded, ok := unescape(path[i:])
			switch {
			case !ok:
				out = append(out, c)
				i++
			case unreserved(decoded):
				out = append(out, decoded)
				i += 3
			default:
				valid = valid && decoded != 0
				out = append(out, path[i:i+3]...)
				i += 3
			}
		case mustEscape(c):
			valid = valid && c != 0
			out = append(out, '%', upperHex[c>>4], upperHex[c&15])
			i++
		default:
			out = append(out, c)
			i++
		}
	}
	return join(string(out), query, hasQuery), valid
}

const upperHex = "0123456789ABCDEF"

// leadingDots counts the dots, plain or escaped, at the start, and their bytes.
func leadingDots(s string) (dots, length int) {
	for dots <= 2 {
		switch rest := s[length:]; {
		case strings.HasPrefix(rest, "."):
			length++
		case strings.HasPrefix(rest, "%2e"), strings.HasPrefix(rest, "%2E"):
			length += 3
		default:
			return dots, length
		}
		dots++
	}
	return dots, length
}

// parent removes the last segment of a path that ends in a slash.
func parent(path []byte) []byte {
	if len(path) <= 1 {
		return path
	}
	for i := len(path) - 2; i >= 0; i-- {
		if path[i] == '/' {
			return path[:i+1]
		}
	}
	return path
}

// unescape decodes the escape at the start.
func unescape(s string) (byte, bool) {
	if len(s) < 3 {
		return 0, false
	}
	high, low := strings.IndexByte(upperHex, upper(s[1])), strings.IndexByte(upperHex, upper(s[2]))
	return byte(high<<4 | low), high >= 0 && low >= 0
}

func upper(c byte) byte {
	if c >= 'a' && c <= 'z' {
		return c - 'a' + 'A'
	}
	return c
}

func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~'
}

func mustEscape(c byte) bool {
	return c <= ' ' || c >= 0x7f || strings.IndexByte("\"#<>?^`{|}", c) >= 0
}
