package output

import (
	"bytes"
	"testing"
)

func TestScreen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	width, height := 10, 4
	s := NewScreen(&out, func() (int, int) { return width, height })
	for _, step := range []struct{ text, want string }{
		{"a\nb\n", "a\x1b[K\nb\x1b[K\n\x1b[J"},
		{"longer than it is wide\n", "\x1b[2A\rlonger th…\x1b[K\n\x1b[J"},
		{"1\n2\n3\n4\n5\n", "\x1b[1A\r1\x1b[K\n2\x1b[K\n… and 3 m…\x1b[K\n\x1b[J"},
		{"1\n", "\x1b[3A\r1\x1b[K\n\x1b[J"},
	} {
		out.Reset()
		if err := s.Show(step.text); err != nil {
			t.Fatal(err)
		}
		if out.String() != step.want {
			t.Errorf("%q is drawn as %q, want %q", step.text, out.String(), step.want)
		}
	}
	width, height = 0, 0 // unknown
	out.Reset()
	if err := s.Show("longer than it is wide\n2\n3\n4\n5"); err != nil || bytes.Count(out.Bytes(), []byte("\n")) != 5 {
		t.Errorf("drawn as %q, %v", out.String(), err)
	}
}
