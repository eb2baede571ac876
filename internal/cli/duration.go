package cli

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// DurationVar defines a duration flag. It also takes days (1d, 1d12h) and refuses
// negative values.
func DurationVar(fs *pflag.FlagSet, p *time.Duration, name string, def time.Duration, usage string) {
	*p = def
	fs.Var((*durationValue)(p), name, usage)
	if def == 0 {
		fs.Lookup(name).DefValue = "" // the usage explains zero
	}
}

// WaitVar defines a duration flag as DurationVar does. It also refuses 0.
func WaitVar(fs *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	fs.Var(&waitValue{(*durationValue)(p)}, name, usage)
}

type waitValue struct{ *durationValue }

func (w *waitValue) Set(s string) error {
	d, err := ParseDuration(s)
	if err == nil && d == 0 {
		err = errors.New("want more than 0")
	}
	if err == nil {
		*w.durationValue = durationValue(d)
	}
	return err
}

type durationValue time.Duration

func (d *durationValue) Set(s string) error {
	v, err := ParseDuration(s)
	if err == nil {
		*d = durationValue(v)
	}
	return err
}

func (d *durationValue) Type() string   { return "duration" }
func (d *durationValue) String() string { return FormatDuration(time.Duration(*d)) }

// Day is 24 hours.
const Day = 24 * time.Hour

// ParseDuration parses a duration as time.ParseDuration does, with days before it.
func ParseDuration(s string) (time.Duration, error) {
	if strings.HasPrefix(s, "-") {
		return 0, fmt.Errorf("duration %q is negative", s)
	}
	bad := fmt.Errorf("%q is not a duration, write for example 30s, 5m, 12h or 90d", s)
	if strings.ContainsAny(s, "+-") {
		return 0, bad
	}
	days, rest, found := strings.Cut(s, "d")
	if !found {
		days, rest = "0", s
	} else if rest == "" {
		rest = "0"
	}
	if strings.Trim(days, "0123456789.") != "" {
		return 0, bad
	}
	d, err := time.ParseDuration(days + "h") // times 24 below
	r, err2 := time.ParseDuration(rest)
	if err != nil || err2 != nil {
		return 0, bad
	}
	if d > math.MaxInt64/24 || 24*d > math.MaxInt64-r {
		return 0, fmt.Errorf("duration %q is too long", s)
	}
	return 24*d + r, nil
}

// FormatDuration writes d as parseDuration reads it, without parts that are
// zero: 1d12h, 90d, 1m30s.
func FormatDuration(d time.Duration) string {
	days := d / Day
	s := (d % Day).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	switch {
	case days == 0:
		return s
	case d%Day == 0:
		return fmt.Sprintf("%dd", days)
	default:
		return fmt.Sprintf("%dd%s", days, s)
	}
}
