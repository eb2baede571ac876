package doctor

import (
	"fmt"
	"time"
)

// skew is the tolerated difference of clocks.
const skew = 30 * time.Second

// clockBehind returns the problem of a machine whose clock shows a time before something that
// has happened.
func clockBehind(now, happened time.Time, what string) *problem {
	return &problem{
		fmt.Sprintf("the clock of this machine is at least %s behind: it shows %s, but %s at %s", happened.Sub(now).Round(time.Second), show(now), what, show(happened)),
		"set the clock, for example with NTP",
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func show(t time.Time) string { return t.UTC().Format(time.RFC3339) }
