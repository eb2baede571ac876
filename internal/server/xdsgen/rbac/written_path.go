package rbac

import (
	"regexp"
	"strings"
)

// WrittenPath returns the path of an AuthorizationPolicy from the regular expression that
// pathMatcher made of it, for people.
func WrittenPath(pattern string) (path string, ok bool) {
	path = quotedChar.ReplaceAllString(writtenParts.Replace(charInAnyForm.ReplaceAllString(pattern, "$1")), "$1")
	for _, wildcard := range []func(string) string{
		func(p string) string { return "*" + strings.TrimPrefix(p, "{**}") },
		func(p string) string { return p + "*" },
		func(p string) string { return p },
	} {
		for _, trim := range []string{"", "{**}"} {
			if value := wildcard(strings.TrimSuffix(path, trim)); value != "" && makesPath(value, pattern) {
				return value, true
			}
		}
	}
	return "", false
}

// makesPath reports whether pathMatcher makes the pattern of a path.
func makesPath(value, pattern string) bool {
	for _, m := range []struct{ refuses, raw bool }{{true, false}, {true, true}, {false, false}} {
		if pathMatcher(value, m.refuses, m.raw).GetSafeRegex().GetRegex() == pattern {
			return true
		}
	}
	return false
}

// writtenParts replaces the parts of patterns by what stands for them in a path.
var writtenParts = strings.NewReplacer(
	authority, "", tail, "", between, "/", templateSegment, "{*}", suffixSegment, "*", "[^/]+", "{*}", ".*", "{**}", ".+", "*",
)

// charInAnyForm is a character or its escaped form.
var (
	charInAnyForm = regexp.MustCompile(`\(\?:(\\?[^\\])\|(?:%(?:[0-9]|\[..\]){2})+\)`)
	quotedChar    = regexp.MustCompile(`\\(.)`)
)
