package output

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/olekukonko/tablewriter/pkg/twwidth"
)

// Screen shows texts on a terminal, each in place of the previous one.
type Screen struct {
	w     io.Writer
	size  func() (width, height int)
	lines int // of the text that is shown
}

// NewScreen returns a screen on the terminal w. size is called before each text and
// returns 0 if the size is unknown.
func NewScreen(w io.Writer, size func() (width, height int)) *Screen {
	return &Screen{w: w, size: size}
}

// Show replaces the text. It cuts lines to the width of the terminal, and counts the
// lines that do not fit. The text must be escaped.
func (s *Screen) Show(text string) error {
	width, height := s.size()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if room := height - 1; room > 0 && len(lines) > room { // the cursor stands in the last
		more := len(lines) - room + 1
		lines = append(lines[:room-1:room-1], fmt.Sprintf("… and %d more lines", more))
	}
	var out bytes.Buffer
	if s.lines > 0 {
		fmt.Fprintf(&out, "\x1b[%dA\r", s.lines)
	}
	for _, line := range lines {
		if width > 0 && twwidth.Width(line) > width {
			line = twwidth.Truncate(line, width, "…")
		}
		out.WriteString(line + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	s.lines = len(lines)
	_, err := s.w.Write(out.Bytes())
	return err
}
