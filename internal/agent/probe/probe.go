// Package probe checks the health of an application periodically.
package probe

import (
	"context"
	"time"
)

// Stopping is the problem that is reported when probing ends.
const Stopping = "the workload is stopping"

// Config configures the probe of an application. All fields are needed.
type Config struct {
	// Check returns the problem of the application, or nil when it is healthy. It returns
	// when the context ends.
	Check func(context.Context) error
	// Timeout bounds one check. Period is the interval between checks.
	InitialDelay, Timeout, Period time.Duration
	// Numbers of equal results in a row, at least 1, that change the health.
	SuccessThreshold, FailureThreshold int
}

// Run probes until ctx ends. It calls report when the health is first known, at each change,
// and with Stopping at the end; a problem of "" means healthy. It calls first before each
// check, without the timeout; its error counts like an error of the check.
func (c *Config) Run(ctx context.Context, first func(context.Context) error, report func(problem string)) {
	defer report(Stopping)
	select {
	case <-ctx.Done():
		return
	case <-time.After(c.InitialDelay):
	}
	period := time.NewTicker(c.Period)
	defer period.Stop()
	j := judge{config: c}
	for {
		err := first(ctx)
		if err == nil {
			err = c.once(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if problem, changed := j.note(err); changed {
			report(problem)
		}
		select {
		case <-ctx.Done():
			return
		case <-period.C:
		}
	}
}

func (c *Config) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	return c.Check(ctx)
}

// judge derives the health of the application from single results.
type judge struct {
	config         *Config
	known, healthy bool
	last           bool // the last result was good
	count          int  // of equal results in a row
}

// note counts a result. When the health changes, it returns the new problem.
func (j *judge) note(err error) (problem string, changed bool) {
	good, threshold := err == nil, j.config.SuccessThreshold
	if !good {
		problem, threshold = err.Error(), j.config.FailureThreshold
	}
	if good != j.last {
		j.last, j.count = good, 0
	}
	if j.count++; j.known && j.healthy == good || j.count < threshold {
		return "", false
	}
	j.known, j.healthy = true, good
	return problem, true
}
