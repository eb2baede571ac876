package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"text/tabwriter"
)

// report is the result of one run.
type report struct {
	Revision   string   `json:"revision"`
	Processors int      `json:"processors"`
	Proxies    int      `json:"proxies"`
	Services   int      `json:"services"`
	Endpoints  int      `json:"endpoints"`
	Figures    []figure `json:"figures"`
}

// perSecond is the only unit of which more is better.
const perSecond = "per second"

// figure is one measured value. Smaller is better, except for perSecond.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`            // seconds, bytes, ratio, count or perSecond
	Limit float64 `json:"limit,omitempty"` // what must be reached; 0 is nothing
}

// add records a figure, and prints it as progress.
func (r *report) add(name string, value float64, unit string, limit float64) {
	fmt.Fprintf(os.Stderr, "%s: %s\n", name, show(value, unit))
	r.Figures = append(r.Figures, figure{name, value, unit, limit})
}

// limit sets the limit of a figure.
func (r *report) limit(name string, limit float64) {
	for i := range r.Figures {
		if r.Figures[i].Name == name {
			r.Figures[i].Limit = limit
		}
	}
}

// value returns the figure with the name, or 0.
func (r *report) value(name string) float64 {
	for _, f := range r.Figures {
		if f.Name == name {
			return f.Value
		}
	}
	return 0
}

// print prints the figures with their limits.
func (r *report) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintf(t, "WHAT\tMEASURED\tMUST REACH\t\n")
	for _, f := range r.Figures {
		limit, verdict := "", ""
		if f.Limit > 0 {
			limit = show(f.Limit, f.Unit)
			switch {
			case f.Unit == perSecond && f.Value < f.Limit:
				verdict = "under"
			case f.Unit != perSecond && f.Value > f.Limit:
				verdict = "over"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.Name, show(f.Value, f.Unit), limit, verdict)
	}
	return t.Flush()
}

func show(v float64, unit string) string {
	switch {
	case unit == "ratio":
		return fmt.Sprintf("%.3f", v)
	case unit == "count":
		return fmt.Sprintf("%.0f", v)
	case unit == perSecond:
		return fmt.Sprintf("%.0f/s", v)
	case unit == "seconds" && v < 0.001:
		return fmt.Sprintf("%.0f µs", v*1e6)
	case unit == "seconds" && v < 1:
		return fmt.Sprintf("%.1f ms", v*1000)
	case unit == "seconds":
		return fmt.Sprintf("%.2f s", v)
	case v >= 1e6 || v <= -1e6:
		return fmt.Sprintf("%.1f MB", v/1e6)
	}
	return fmt.Sprintf("%.1f KB", v/1e3)
}

// save writes the report as JSON.
func (r *report) save(file string) error {
	r.Processors = runtime.NumCPU()
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
