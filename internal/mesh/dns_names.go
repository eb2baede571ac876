package mesh

import (
	"strings"

	"golang.org/x/net/http/httpguts"
)

// IsHeaderName reports whether s can be the name of an HTTP header.
func IsHeaderName(s string) bool { return len(s) <= 256 && httpguts.ValidHeaderFieldName(s) }

// IsDNSLabel reports whether s is a DNS-1123 label: lower-case letters,
// digits and '-', at most 63 bytes, first and last alphanumeric.
func IsDNSLabel(s string) bool {
	if s == "" || len(s) > 63 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (c != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return true
}

// CanonicalHost returns a host in the form in which hosts are compared: in lower case, without the
// dot at the end that makes it absolute.
func CanonicalHost(host string) string { return strings.TrimSuffix(strings.ToLower(host), ".") }

// IsDNSName reports whether s is a DNS-1123 subdomain: labels joined by dots,
// at most 253 bytes.
func IsDNSName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !IsDNSLabel(label) {
			return false
		}
	}
	return true
}
