package output

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/olekukonko/tablewriter/pkg/twwidth"
)

// Screen shows a text on a terminal in place of the one before it.
type Screen struct {
	w     io.Writer
	size  func() (width, height int)
	lines int // of the text that is shown
}

// NewScreen draws on w, a terminal of that size; 0 is unknown. It is asked before
// each text.
func NewScreen(w io.Writer, size func() (width, height int)) *Screen {
	return &Screen{w: w, size: size}
}

// Show replaces the text. Lines are cut to the width of the terminal, and those
// that do not fit under each other are left out and counted. The text must be
// escaped.
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
