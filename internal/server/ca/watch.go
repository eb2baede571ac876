package ca

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/meshctl/meshctl/internal/certs/store"
)

const (
	// quiet is how long files that are changed one by one must rest before they
	// are read together.
	quiet = 100 * time.Millisecond
	// longest is how long files that never rest are waited for.
	longest = 2 * time.Second
	// checkInterval is how often the directory is looked at without an event:
	// not every file system has them, nor has what links lead to.
	checkInterval = time.Second
	// judgeInterval is how often files that do not change are judged anew.
	judgeInterval = time.Minute
)

// Run follows the directory until ctx ends.
func (c *CA) Run(ctx context.Context) error {
	w := c.watch()
	defer w.close()
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	var p pending
	for {
		var rested bool
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.events():
			if !w.concerns(e) {
				continue
			}
		case err := <-w.errors():
			c.cfg.Log.Warn("file events of the signing CA were lost", "dir", c.cfg.Dir, "error", err)
		case <-check.C:
		case <-rest.C:
			rested = true
		}
		w.renew()
		if wait := c.see(&p, rested); wait > 0 {
			rest.Reset(wait)
		}
	}
}

// pending is a change of the directory that is not used yet.
type pending struct {
	stamp store.Stamp
	since time.Time
}

// see looks at the directory and uses what has changed in it: at once when all
// files changed together, else when they rest. It returns how long to wait for
// that, 0 for not at all.
func (c *CA) see(p *pending, rested bool) time.Duration {
	now, used, stamp := c.cfg.Now(), c.look.Load().stamp, store.StampOf(c.cfg.Dir)
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
		if m, err := store.Read(c.cfg.Dir); err == nil {
			c.load(m)
			return 0
		}
		return quiet // it keeps changing
	case (stamp.Directory != used.Directory || stamp.Version != used.Version) && stamp != p.stamp:
		// A whole new directory. If it is not good it may still be filled.
		if m, err := store.Read(c.cfg.Dir); err == nil {
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

// again judges the directory anew from time to time: what was good may have
// expired, and what was too early may count by now; at once when the mesh has
// got another trust domain.
func (c *CA) again(now time.Time) {
	domain, _ := c.cfg.TrustDomain()
	if last := c.look.Load(); (now.Sub(last.at) >= judgeInterval || domain != last.domain) && !errors.Is(last.err, errNone) {
		if m, err := store.Read(c.cfg.Dir); err == nil && m.Stamp == last.stamp {
			c.load(m)
		}
	}
}

// watcher gets the events of a directory, and of the one above it, where its
// name may be given to another. Without events (nil) there is still the clock.
type watcher struct {
	*fsnotify.Watcher
	dir     string
	watched string // Directory of its stamp
}

func (c *CA) watch() *watcher {
	w := &watcher{dir: filepath.Clean(c.cfg.Dir)}
	var err error
	if w.Watcher, err = fsnotify.NewWatcher(); err == nil {
		err = w.Add(filepath.Dir(w.dir))
	}
	if err != nil {
		c.cfg.Log.Warn("no file events for the signing CA, looking every second", "dir", w.dir, "error", err)
	}
	w.renew()
	return w
}

// renew watches the directory that has the name now.
func (w *watcher) renew() {
	if w.Watcher == nil {
		return
	}
	if now := store.StampOf(w.dir).Directory; now != w.watched {
		_ = w.Remove(w.dir)
		if w.Add(w.dir) == nil {
			w.watched = now
		}
	}
}

func (w *watcher) events() <-chan fsnotify.Event {
	if w.Watcher == nil {
		return nil
	}
	return w.Events
}

func (w *watcher) errors() <-chan error {
	if w.Watcher == nil {
		return nil
	}
	return w.Errors
}

// concerns passes over what happens beside the directory.
func (w *watcher) concerns(e fsnotify.Event) bool {
	name := filepath.Clean(e.Name)
	return name == w.dir || filepath.Dir(name) == w.dir
}

func (w *watcher) close() {
	if w.Watcher != nil {
		_ = w.Close()
	}
}
