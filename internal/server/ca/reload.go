package ca

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/certs/store"
)

const (
	// quiet is how long files must not change before they are read together.
	quiet = 100 * time.Millisecond
	// longest bounds the wait for files that keep changing.
	longest = 2 * time.Second
	// checkInterval is the interval between comparisons of stamps.
	checkInterval = 250 * time.Millisecond
	// judgeInterval is the interval between checks of unchanged files.
	judgeInterval = time.Minute
)

// Run follows the source until ctx ends.
func (c *CA) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return c.cfg.Source.Follow(ctx, func() {
			select {
			case changed <- struct{}{}:
			default: // a check is pending already
			}
		})
	})
	g.Go(func() error {
		c.follow(ctx, changed)
		return nil
	})
	return g.Wait()
}

func (c *CA) follow(ctx context.Context, changed <-chan struct{}) {
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	var p pendingChange
	for {
		var rested bool
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-check.C:
		case <-rest.C:
			rested = true
		}
		if wait := c.checkSource(&p, rested); wait > 0 {
			rest.Reset(wait)
		}
	}
}

// pendingChange is a change of the source that is not in use yet.
type pendingChange struct {
	stamp store.Stamp
	since time.Time
}

// checkSource takes changes of the source into use: at once if all files changed
// together, else when they have stopped changing. It returns the time until the next
// check, 0 for none.
func (c *CA) checkSource(p *pendingChange, rested bool) time.Duration {
	now, used, stamp := c.cfg.Now(), c.last.Load().stamp, c.cfg.Source.Stamp()
	if stamp == used {
		*p = pendingChange{}
		c.rejudge(now)
		return 0
	}
	if p.since.IsZero() {
		p.since = now
	}
	switch {
	case rested && stamp == p.stamp, now.Sub(p.since) >= longest:
		*p = pendingChange{}
		if m, err := c.cfg.Source.Read(); err == nil {
			c.load(m)
			return 0
		}
		return quiet // it keeps changing
	case (stamp.Directory != used.Directory || stamp.Version != used.Version) && stamp != p.stamp:
		// A new directory. If it is not valid yet, it may still be filled.
		if m, err := c.cfg.Source.Read(); err == nil {
			if _, _, _, err := c.judge(m); err == nil {
				*p = pendingChange{}
				c.load(m)
				return 0
			}
		}
	case stamp == p.stamp:
		return 0 // the timer runs
	}
	p.stamp = stamp
	return quiet
}

// rejudge checks an unchanged source again from time to time, as certificates expire
// or become valid, and at once when the trust domain has changed.
func (c *CA) rejudge(now time.Time) {
	domain, _ := c.cfg.TrustDomain()
	if last := c.last.Load(); (now.Sub(last.at) >= judgeInterval || domain != last.domain) && !errors.Is(last.err, errNone) {
		if m, err := c.cfg.Source.Read(); err == nil && m.Stamp == last.stamp {
			c.load(m)
		}
	}
}
