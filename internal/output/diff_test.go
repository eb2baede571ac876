package output

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func numbered(from, to int) string {
	var lines []string
	for i := from; i <= to; i++ {
		lines = append(lines, fmt.Sprint(i))
	}
	return strings.Join(lines, "\n")
}

// TestUnifiedDiff: hunks, context, and texts that differ too much.
func TestUnifiedDiff(t *testing.T) {
	t.Parallel()
	long := numbered(1, 60)
	for name, tc := range map[string]struct{ before, after, want string }{
		"the same":        {long, long, ""},
		"one line":        {"a", "b", "@@ -1,1 +1,1 @@\n-a\n+b\n"},
		"a line more":     {"a\nc", "a\nb\nc", "@@ -1,2 +1,3 @@\n a\n+b\n c\n"},
		"a line less":     {"a\nb\nc", "a\nc", "@@ -1,3 +1,2 @@\n a\n-b\n c\n"},
		"the shortest":    {"a\nb\nc\na\nb\nb\na", "c\nb\na\nb\na\nc", "@@ -1,7 +1,6 @@\n-a\n-b\n c\n+b\n a\n b\n-b\n a\n+c\n"},
		"seven around it": {long, strings.Replace(long, "30", "x", 1), "@@ -23,15 +23,15 @@\n 23\n 24\n 25\n 26\n 27\n 28\n 29\n-30\n+x\n 31\n 32\n 33\n 34\n 35\n 36\n 37\n"},
	} {
		if got := UnifiedDiff(tc.before, tc.after); got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tc.want)
		}
	}
	apart := strings.Replace(strings.Replace(long, "\n10\n", "\nx\n", 1), "\n25\n", "\ny\n", 1)
	if n := strings.Count(UnifiedDiff(long, apart), "@@ -"); n != 1 {
		t.Errorf("changes with 14 lines between them are in %d hunks", n)
	}
	apart = strings.Replace(strings.Replace(long, "\n10\n", "\nx\n", 1), "\n26\n", "\ny\n", 1)
	if n := strings.Count(UnifiedDiff(long, apart), "@@ -"); n != 2 {
		t.Errorf("changes with 15 lines between them are in %d hunks", n)
	}
	// Texts that differ too much are replaced, except equal lines at their ends.
	got := UnifiedDiff("a\n"+numbered(1, 2000)+"\nz", "a\n"+numbered(3000, 5000)+"\nz")
	if !strings.HasPrefix(got, "@@ -1,2002 +1,2003 @@\n a\n-1\n-2\n") || !strings.HasSuffix(got, "+5000\n z\n") {
		t.Errorf("got %.50q … %q", got, got[len(got)-20:])
	}
}

// patched applies a diff.
func patched(before, diff string) (string, error) {
	was, at := strings.Split(before, "\n"), 0
	var out []string
	for line := range strings.Lines(diff) {
		line = strings.TrimSuffix(line, "\n")
		if text, ok := strings.CutPrefix(line, "@@ -"); ok {
			var first, n, first2, n2 int
			if _, err := fmt.Sscanf(text, "%d,%d +%d,%d @@", &first, &n, &first2, &n2); err != nil {
				return "", err
			}
			if n > 0 {
				first--
			}
			if n2 > 0 {
				first2--
			}
			out = append(out, was[at:first]...)
			if at = first; len(out) != first2 {
				return "", fmt.Errorf("%q begins at line %d", line, len(out))
			}
			continue
		}
		switch line[0] {
		case '+':
			out = append(out, line[1:])
			continue
		case ' ':
			out = append(out, line[1:])
		}
		if was[at] != line[1:] {
			return "", fmt.Errorf("line %d is %q, not %q", at, was[at], line[1:])
		}
		at++
	}
	return strings.Join(append(out, was[at:]...), "\n"), nil
}

func FuzzUnifiedDiff(f *testing.F) {
	f.Add("abcabba", "cbabac")
	f.Add("", "a")
	f.Add("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "baaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
	f.Fuzz(func(t *testing.T, a, b string) {
		lines := func(s string) string { // each byte is a line
			return strings.Join(strings.Split(strings.Map(func(r rune) rune { return 'a' + r%4 }, s), ""), "\n")
		}
		a, b = lines(a), lines(b)
		diff := UnifiedDiff(a, b)
		if got, err := patched(a, diff); err != nil || got != b {
			t.Errorf("%v: %q with\n%sis %q, want %q", err, a, diff, got, b)
		}
		if (diff == "") != (a == b) {
			t.Errorf("%q and %q: %q", a, b, diff)
		}
	})
}

// TestCommonIsLongest compares common with the longest common subsequence of short
// texts.
func TestCommonIsLongest(t *testing.T) {
	t.Parallel()
	for i := range 3000 {
		var a, b []string
		for n := i; n > 0; n /= 3 {
			a = append(a, fmt.Sprint(n%3))
			b = append(b, fmt.Sprint((n*7+i)%3))
		}
		best := make([][]int, len(a)+1)
		for x := range best {
			best[x] = make([]int, len(b)+1)
		}
		for x := range slices.Backward(a) {
			for y := range slices.Backward(b) {
				best[x][y] = max(best[x+1][y], best[x][y+1])
				if a[x] == b[y] {
					best[x][y] = best[x+1][y+1] + 1
				}
			}
		}
		if got := common(a, b); len(got) != best[0][0] {
			t.Errorf("%v and %v share %v, want %d", a, b, got, best[0][0])
		}
	}
}
