// Package probe finds out, again and again, whether an application is healthy.
package probe

import (
	"context"
	"time"
)

// Stopping is what is wrong with an application that is probed no more.
const Stopping = "the workload is stopping"

// Config says how an application is probed. All fields are needed.
type Config struct {
	// Check returns what is wrong with the application, nil when it is healthy,
	// once it knows or the context has ended.
	Check func(context.Context) error
	// Timeout bounds one check, Period is from one to the next.
	InitialDelay, Timeout, Period time.Duration
	// So many checks in a row, at least 1, make it healthy, or unhealthy.
	SuccessThreshold, FailureThreshold int
}

// Run probes until ctx ends. It calls report when it first knows how the
// application is, at each change from healthy to unhealthy or back, and with
// Stopping at the end; a problem of "" is good health. first, asked before each
// check without its timeout, counts like the check.
func (c *Config) Run(ctx context.Context, first func(context.Context) error, report func(problem string)) {
	defer report(Stopping)
	delay := time.NewTimer(c.InitialDelay)
	defer delay.Stop()
	select {
	case <-ctx.Done():
		return
	case <-delay.C:
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

// judge makes of single results how the application is.
type judge struct {
	config              *Config
	known, healthy      bool
	successes, failures int // in a row
}

// note counts a result, and says what is wrong if that changes how the application is.
func (j *judge) note(err error) (problem string, changed bool) {
	if err == nil {
		j.successes, j.failures = j.successes+1, 0
		if j.known && j.healthy || j.successes < j.config.SuccessThreshold {
			return "", false
		}
		j.known, j.healthy = true, true
		return "", true
	}
	j.successes, j.failures = 0, j.failures+1
	if j.known && !j.healthy || j.failures < j.config.FailureThreshold {
		return "", false
	}
	j.known, j.healthy = true, false
	return err.Error(), true
}
