package ca

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/certs/store"
)

const (
	// quiet is how long files that are changed one by one must rest before they
	// are read together.
	quiet = 100 * time.Millisecond
	// longest is how long files that never rest are waited for.
	longest = 2 * time.Second
	// checkInterval is how often the source is looked at without an event: not
	// every file system has them, nor has what links lead to.
	checkInterval = time.Second
	// judgeInterval is how often files that do not change are judged anew.
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
			default: // it is to be looked at already
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
	var p pending
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
		if wait := c.see(&p, rested); wait > 0 {
			rest.Reset(wait)
		}
	}
}

// pending is a change of the source that is not used yet.
type pending struct {
	stamp store.Stamp
	since time.Time
}

// see looks at the source and uses what has changed in it: at once when all
// files changed together, else when they rest. It returns how long to wait for
// that, 0 for not at all.
func (c *CA) see(p *pending, rested bool) time.Duration {
	now, used, stamp := c.cfg.Now(), c.look.Load().stamp, c.cfg.Source.Stamp()
	if stamp == used {
		*p = pending{}
		c.again(now)
		return 0
	}
	if p.since.IsZero() {
		p.since = now
	}
	switch {
	case rested && stamp == p.stamp, now.Sub(p.since) >= longest:
		*p = pending{}
		if m, err := c.cfg.Source.Read(); err == nil {
			c.load(m)
			return 0
		}
		return quiet // it keeps changing
	case (stamp.Directory != used.Directory || stamp.Version != used.Version) && stamp != p.stamp:
		// A whole new directory. If it is not good it may still be filled.
		if m, err := c.cfg.Source.Read(); err == nil {
			if _, _, _, err := c.judge(m); err == nil {
				*p = pending{}
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

// again judges the source anew from time to time: what was good may have
// expired, and what was too early may count by now; at once when the mesh has
// got another trust domain.
func (c *CA) again(now time.Time) {
	domain, _ := c.cfg.TrustDomain()
	if last := c.look.Load(); (now.Sub(last.at) >= judgeInterval || domain != last.domain) && !errors.Is(last.err, errNone) {
		if m, err := c.cfg.Source.Read(); err == nil && m.Stamp == last.stamp {
			c.load(m)
		}
	}
}
