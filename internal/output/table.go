package output

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"

	"github.com/olekukonko/ll"
	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/pkg/twwidth"
	"github.com/olekukonko/tablewriter/tw"
)

// Table is a table in plain text, without lines and colours, one row a line.
type Table struct {
	Header []string
	// Rows have as many cells as Header.
	Rows [][]string
	// NoHeader omits the header, for rows that continue a table.
	NoHeader bool
	// Gap is the number of spaces between the longest cell of a column and the next
	// column; 0 means 5.
	Gap int
	// Name is the column with the name of each row. Empty means the column NAME, or the
	// first one without it.
	Name string
}

// writeNames writes each name once.
func (t *Table) writeNames(w io.Writer) error {
	at := max(slices.Index(t.Header, cmp.Or(t.Name, "NAME")), 0)
	out := bufio.NewWriter(w)
	seen := make(map[string]bool, len(t.Rows))
	for _, row := range t.Rows {
		if name := row[at]; !seen[name] {
			seen[name] = true
			out.WriteString(Escape(name) + "\n")
		}
	}
	return out.Flush()
}

// writeCSV writes the table as in RFC 4180, but with plain line ends. Cells are escaped
// (see Escape).
func (t *Table) writeCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	if !t.NoHeader {
		if err := out.Write(escapeRow(t.Header)); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	for _, row := range t.Rows {
		if err := out.Write(escapeRow(row)); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	out.Flush()
	return out.Error()
}

// Write writes the table. Cells are escaped (see Escape) and padded with spaces; no line
// ends in a space.
func (t *Table) Write(w io.Writer) error {
	gap := t.Gap
	if gap == 0 {
		gap = 5
	}
	widths := make([]int, len(t.Header))
	for col := range widths {
		widths[col] = gap + cellWidth(t.Header[col])
		for _, row := range t.Rows {
			widths[col] = max(widths[col], gap+cellWidth(row[col]))
		}
	}

	out := bufio.NewWriterSize(w, 64<<10)
	table := newTable(out, widths)
	if err := table.Start(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if !t.NoHeader {
		table.Header(escapeRow(t.Header))
	}
	for _, row := range t.Rows {
		if err := table.Append(escapeRow(row)); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	if err := table.Close(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return out.Flush()
}

// newTable returns a stream of rows of known widths. It holds one row at a time, so that
// a long table takes no more memory than its cells.
func newTable(w *bufio.Writer, widths []int) *tablewriter.Table {
	perColumn := tw.NewMapper[int, int]()
	for col, width := range widths {
		perColumn.Set(col, width)
	}
	return tablewriter.NewTable(w,
		tablewriter.WithStreaming(tw.StreamConfig{Enable: true, StrictColumns: true}),
		tablewriter.WithColumnWidths(perColumn),
		tablewriter.WithTrimSpace(tw.Off),
		tablewriter.WithTrimTab(tw.Off),
		tablewriter.WithPadding(tw.PaddingNone),
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithRenderer(&plainText{w: w, widths: widths}),
	)
}

// plainText renders rows as text padded with spaces, except the last cell.
type plainText struct {
	w      *bufio.Writer // keeps the first error for Flush
	widths []int
}

func (p *plainText) Row(row []string, _ tw.Formatting) {
	spaces := 0
	for col, cell := range row {
		if cell != "" {
			for range spaces {
				p.w.WriteByte(' ')
			}
			p.w.WriteString(cell)
			spaces = 0
		}
		spaces += p.widths[col] - cellWidth(cell)
	}
	p.w.WriteByte('\n')
}

func (p *plainText) Header(lines [][]string, f tw.Formatting) {
	for _, line := range lines {
		p.Row(line, f)
	}
}

func (p *plainText) Config() tw.Rendition             { return tw.Rendition{Streaming: true} }
func (p *plainText) Start(io.Writer) error            { return nil }
func (p *plainText) Close() error                     { return nil }
func (p *plainText) Footer([][]string, tw.Formatting) {}
func (p *plainText) Line(tw.Formatting)               {}
func (p *plainText) Logger(*ll.Logger)                {}

func escapeRow(row []string) []string {
	out := make([]string, len(row))
	for i, cell := range row {
		out[i] = Escape(cell)
	}
	return out
}

// cellWidth returns the number of terminal columns of a cell.
func cellWidth(cell string) int {
	if isPlain(cell) {
		return len(cell)
	}
	return twwidth.Width(Escape(cell))
}
