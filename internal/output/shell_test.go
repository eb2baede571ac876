package output

import "testing"

func TestShellWord(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":               "''",
		"127.1.0.1:1500": "127.1.0.1:1500",
		"outbound|1||a":  "'outbound|1||a'",
		"it's":           `'it'\''s'`,
	} {
		if got := ShellWord(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}
