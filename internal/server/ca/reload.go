package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
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

// load takes a set into use if it is valid, and records the result.
func (c *CA) load(m *store.Material) {
	now, old, last := c.cfg.Now(), c.set.Load(), c.last.Load()
	l := &loadResult{at: now, stamp: m.Stamp, since: now}
	l.domain, _ = c.cfg.TrustDomain()
	if l.set, l.warnings, l.alarm, l.err = c.judge(m); l.set == nil {
		l.seen = describeSeen(m)
	}
	if l.err != nil && old != nil {
		l.unfit = c.Fits(old)
	}
	known := last != nil && text(last.err) == text(l.err) && text(last.alarm) == text(l.alarm)
	if known {
		l.since = last.since
	}
	switch {
	case l.err != nil && old == nil:
		c.cfg.Log.Error("signing CA refused", "source", c.cfg.Source.Place(), "error", l.err)
	case l.unfit != nil && !known:
		c.cfg.Log.Error("the signing CA does not fit the mesh, nothing is signed", "source", c.cfg.Source.Place(), "error", l.unfit)
	case l.err != nil && !known:
		c.cfg.Log.Error("new signing CA refused, the last good one keeps signing", "source", c.cfg.Source.Place(), "error", l.err)
	case l.err != nil:
	case old != nil && same(old, l.set):
		l.set = old
	default:
		signer := l.set.Cert
		c.cfg.Log.Info("signing CA loaded", "subject", signer.Subject.String(), "until", signer.NotAfter.UTC().Format(time.RFC3339),
			"sha256", certs.Fingerprint(signer), "roots", len(l.set.Roots), "revoked", l.set.revoked.count())
		c.set.Store(l.set) // callers with its certificates are known before there are any
		c.cfg.Use(l.set)
		if old == nil {
			close(c.ready)
		}
	}
	if l.alarm != nil && !known {
		c.cfg.Log.Error("revocation lists of the signing CA", "source", c.cfg.Source.Place(), "error", l.alarm)
	}
	c.last.Store(l)
	if last == nil || last.stamp != l.stamp {
		c.cfg.Reloaded(l.err == nil && l.alarm == nil)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// judge returns the set in the source. The error is the reason why it cannot replace
// the set in use; next is not nil if it is valid by itself.
func (c *CA) judge(m *store.Material) (next *Set, warnings []verify.Finding, alarm, err error) {
	now, old := c.cfg.Now(), c.set.Load()
	opts := verify.Options{Now: now}
	opts.TrustDomain, opts.Aliases = c.cfg.TrustDomain()
	a, warnings, err := m.Authority(opts)
	if err == nil {
		err = tryAuthority(a, opts.TrustDomain, c.cfg.ServerNames, c.cfg.Source.Place(), now)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	lists, alarm, err := c.lists(m, a, now)
	if err != nil {
		return nil, nil, nil, err
	}
	next = newSet(a, lists, now)
	next.ForPeers = forPeers(old, lists)
	if old != nil {
		err = follows(old, next, c.Fits(old) == nil, c.cfg.Alive(now), c.cfg.Source.Place(), now)
	}
	return next, append(warnings, lists.Warnings...), alarm, err
}

func same(a, b *Set) bool {
	equal := func(x, y []*x509.Certificate) bool { return slices.EqualFunc(x, y, (*x509.Certificate).Equal) }
	return a.Cert.Equal(b.Cert) && equal(a.Chain, b.Chain) && equal(a.Roots, b.Roots) &&
		bytes.Equal(a.Revocations.PEM, b.Revocations.PEM) && a.ForPeers == b.ForPeers
}
