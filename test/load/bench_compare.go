package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
)

func loadReport(file string) (*report, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w (run 'make bench' at that revision first)", err)
	}
	r := new(report)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// compare prints two reports side by side.
func compare(w io.Writer, oldFile, newFile string) error {
	before, err := loadReport(oldFile)
	if err != nil {
		return err
	}
	after, err := loadReport(newFile)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintf(t, "WHAT\t%s\t%s\tRATIO\n", before.Revision, after.Revision)
	for _, f := range after.Figures {
		old, ratio := "", ""
		if v := before.value(f.Name); v != 0 {
			old, ratio = show(v, f.Unit), fmt.Sprintf("%.2f", f.Value/v)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.Name, old, show(f.Value, f.Unit), ratio)
	}
	return t.Flush()
}
