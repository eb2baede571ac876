package cli

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// durationVar binds a duration flag that also takes days (1d, 1d12h) and
// refuses negative values.
func durationVar(fs *pflag.FlagSet, p *time.Duration, name string, def time.Duration, usage string) {
	*p = def
	fs.Var((*durationValue)(p), name, usage)
}

type durationValue time.Duration

func (d *durationValue) Set(s string) error {
	v, err := parseDuration(s)
	if err != nil {
		return err
	}
	*d = durationValue(v)
	return nil
}

func (d *durationValue) Type() string   { return "duration" }
func (d *durationValue) String() string { return formatDuration(time.Duration(*d)) }

const day = 24 * time.Hour

// parseDuration reads what time.ParseDuration reads, with days in front.
func parseDuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%q is not a duration, write for example 30s, 5m, 12h or 90d", s)
	var total time.Duration
	rest := s
	if days, after, found := strings.Cut(s, "d"); found {
		d, err := time.ParseDuration(days + "h")
		if err != nil {
			return 0, bad
		}
		if d > math.MaxInt64/24 {
			return 0, fmt.Errorf("duration %q is too long", s)
		}
		total, rest = 24*d, after
	}
	if rest != "" || total == 0 && rest == s {
		d, err := time.ParseDuration(rest)
		if err != nil {
			return 0, bad
		}
		total += d
	}
	if total < 0 || strings.HasPrefix(s, "-") {
		return 0, fmt.Errorf("duration %q is negative", s)
	}
	return total, nil
}

// formatDuration writes d as parseDuration reads it, without parts that are
// zero: 1d12h, 90d, 1m30s.
func formatDuration(d time.Duration) string {
	days := d / day
	s := (d % day).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	switch {
	case days == 0:
		return s
	case d%day == 0:
		return fmt.Sprintf("%dd", days)
	default:
		return fmt.Sprintf("%dd%s", days, s)
	}
}
