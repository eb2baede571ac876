package snapshot

import (
	"testing"
)

func TestCovers(t *testing.T) {
	for _, tc := range []struct {
		wildcard, host string
		want           bool
	}{
		{"*.x", "a.x", true},
		{"*.x", "a.b.x", true},
		{"*.x", "*.b.x", true},
		{"*", "a", true},
		{"*", "*.x", true},
		{"*.x", "*.x", false}, // the same host
		{"*.x", "x", false},
		{"*.x", "a.y", false},
		{"*.b.x", "*.x", false},
		{"a.x", "a.x", false}, // no wildcard
	} {
		if got := Covers(tc.wildcard, tc.host); got != tc.want {
			t.Errorf("Covers(%q, %q) = %t, want %t", tc.wildcard, tc.host, got, tc.want)
		}
	}
}
