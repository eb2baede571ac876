package output

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTable(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		table Table
		want  string
	}{
		"columns are five apart, no trailing spaces": {
			Table{Header: []string{"NAME", "port_name", "LAST"}, Rows: [][]string{
				{"a", "", "x  y"}, {"longer name", " b", ""}, {"", "", ""},
			}},
			"NAME            port_name     LAST\n" +
				"a                             x  y\n" +
				"longer name      b\n" +
				"\n",
		},
		"gap":     {Table{Header: []string{"A", "B"}, Rows: [][]string{{"aa", "b"}}, Gap: 1}, "A  B\naa b\n"},
		"no rows": {Table{Header: []string{"A", "B"}}, "A     B\n"},
		"wide characters": {
			Table{Header: []string{"A", "B"}, Rows: [][]string{{"日本", "b"}}, Gap: 1},
			"A    B\n日本 b\n",
		},
		"control bytes": {
			Table{Header: []string{"A", "B"}, Rows: [][]string{{"a\nb\x1b[31m", "\u202eevil\xff"}}, Gap: 1},
			"A            B\n" + `a\nb\x1b[31m \u202eevil\xff` + "\n",
		},
		"long cells are not wrapped": {
			Table{Header: []string{"A", "B"}, Rows: [][]string{{strings.Repeat("word ", 100) + "end", "b"}}, Gap: 1},
			"A" + strings.Repeat(" ", 503) + "B\n" + strings.Repeat("word ", 100) + "end b\n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := tc.table.Write(&out); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

type brokenPipe struct{}

var errBrokenPipe = errors.New("broken pipe")

func (brokenPipe) Write([]byte) (int, error) { return 0, errBrokenPipe }

func TestTableReportsWriteErrors(t *testing.T) {
	t.Parallel()
	table := Table{Header: []string{"A"}, Rows: [][]string{{"a"}}}
	if err := table.Write(brokenPipe{}); !errors.Is(err, errBrokenPipe) {
		t.Errorf("Write = %v, want %v", err, errBrokenPipe)
	}
}

// FuzzTable: for every cell, the text has one line a row and no byte that controls a
// terminal.
func FuzzTable(f *testing.F) {
	f.Add("a", "b")
	f.Add("\x1b]0;title\a", "\u2066x\u2069\r\n")
	f.Add("\xc0\x80", "\u0085\u2028\t")
	f.Fuzz(func(t *testing.T, a, b string) {
		var out bytes.Buffer
		table := Table{Header: []string{a, b}, Rows: [][]string{{b, a}}}
		if err := table.Write(&out); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "\n"); n != 2 {
			t.Errorf("%d lines, want 2: %q", n, out.String())
		}
		if i := bytes.IndexFunc(out.Bytes(), mustEscape); i >= 0 {
			t.Errorf("byte %d does not print: %q", i, out.String())
		}
	})
}

func BenchmarkTable(b *testing.B) {
	table := Table{Header: []string{"ENDPOINT", "STATUS", "OUTLIER CHECK", "CLUSTER"}}
	for i := range 50_000 {
		table.Rows = append(table.Rows, []string{
			fmt.Sprintf("10.0.%d.%d:8080", i/256, i%256), "HEALTHY", "OK",
			fmt.Sprintf("outbound|8080||service-%d.ns.svc.cluster.local", i/10),
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := table.Write(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
