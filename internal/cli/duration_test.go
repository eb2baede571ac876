package cli

import (
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in   string
		want time.Duration
		out  string // formatted
	}{
		{"0", 0, "0s"},
		{"0d", 0, "0s"},
		{"1.5s", 1500 * time.Millisecond, "1.5s"},
		{"90s", 90 * time.Second, "1m30s"},
		{"10m", 10 * time.Minute, "10m"},
		{"1h", time.Hour, "1h"},
		{"1h0m5s", time.Hour + 5*time.Second, "1h0m5s"},
		{"90d", 90 * Day, "90d"},
		{"24h", Day, "1d"},
		{"1d12h", 36 * time.Hour, "1d12h"},
		{"1.5d", 36 * time.Hour, "1d12h"},
		{"1d1ms", Day + time.Millisecond, "1d1ms"},
	}
	for _, tt := range tests {
		got, err := ParseDuration(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("parseDuration(%q) = %v, %v, want %v", tt.in, got, err, tt.want)
		}
		if out := FormatDuration(got); out != tt.out {
			t.Errorf("formatDuration(%v) = %q, want %q", got, out, tt.out)
		}
	}
}

func TestParseDurationRefuses(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", "d", "1", "1y", "1d1", "1d 2h", "12h1d", "1dd", "1hd",
		"-1s", "-1d", "-0s", "1d-2h", "1d-25h", "200000d", "106751d24h", "9999999999h",
	} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("parseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	f.Add("1d12h")
	f.Add("-1d")
	f.Add("1.5d3ns")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDuration(s)
		if err != nil {
			return
		}
		if d < 0 {
			t.Fatalf("parseDuration(%q) = %d", s, d)
		}
		again, err := ParseDuration(FormatDuration(d))
		if err != nil || again != d {
			t.Fatalf("parseDuration(%q) = %v, but it prints as %q, which is %v, %v", s, d, FormatDuration(d), again, err)
		}
	})
}
