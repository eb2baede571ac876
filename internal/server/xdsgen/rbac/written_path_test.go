package rbac

import "testing"

// TestWrittenPath: paths of policies are shown as they are written, whatever pattern they
// make.
func TestWrittenPath(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"/admin", "/admin/*", "/a-b_c~d.e/*", "*.php", "*/info", "*", "/users/{*}/orders", "/users/{*}/orders/{**}", "/{**}/x",
		"/a+b(c)/", "/ä/€", "/a b", "/", "/*", "/a?b", "/A/Z9",
	} {
		for _, form := range []struct{ refuses, raw bool }{{true, false}, {true, true}, {false, false}} {
			pattern := pathMatcher(path, form.refuses, form.raw).GetSafeRegex().GetRegex()
			if pattern == "" {
				continue // a prefix, suffix or exact value
			}
			if got, ok := WrittenPath(pattern); !ok || got != path {
				t.Errorf("%s, refuses %v, raw %v: %q, %v, of %s", path, form.refuses, form.raw, got, ok, pattern)
			}
		}
	}
	for _, other := range []string{"", "(?i:/x)", "[^/]", "/a|/b"} {
		if got, ok := WrittenPath(other); ok {
			t.Errorf("%s: %s", other, got)
		}
	}
}
