// Package trust keeps the roots of other trust domains, and further roots
// of the own one: those of files, of MeshConfig and of SPIFFE bundle endpoints,
// the last good ones of each.
package trust

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/bundle"
	"github.com/meshctl/meshctl/internal/dial"
)

// Config of a Federation. Now and Log are required.
type Config struct {
	// Sources are those that stay; Set gives the others.
	Sources []Source
	// WebRoots, PEM, are what certificates of endpoints without a SPIFFE id must
	// lead to; nil means the roots of the system.
	WebRoots []byte
	// Guard is what endpoints are connected to through.
	Guard dial.Guard
	// Dir is where the last good bundles of endpoints are kept over restarts; it is
	// made when needed. Empty keeps none.
	Dir string
	// Changed is called after the roots of a trust domain have changed. May be
	// nil.
	Changed func()
	// Fetched is told how each look at a source went. May be nil.
	Fetched func(trustDomain string, ok bool)
	Now     func() time.Time
	Log     *slog.Logger
}

// Federation knows the roots of trust domains. It may be used concurrently.
type Federation struct {
	cfg Config

	mu      sync.Mutex // guards what follows
	ctx     context.Context
	set     []Source // of Set
	entries map[Source]*entry
	ended   sync.WaitGroup
}

// entry is what is known of a source.
type entry struct {
	stop context.CancelFunc // nil when nothing follows it
	// bundle is in use, nil while there was no good one.
	bundle         *bundle.Bundle
	loaded, looked time.Time // when bundle changed, and was last found to be good
	problem        error
	since          time.Time // of the problem
	// restored says that the bundle is of before the start. What is kept for the
	// next one was written at keptAt.
	restored bool
	keptAt   time.Time
	keptSum  [sha256.Size]byte
}

// New checks the sources that stay. Those of files and endpoints are read when
// Run runs.
func New(cfg Config) (*Federation, error) {
	f := &Federation{cfg: cfg, entries: make(map[Source]*entry)}
	ids := make(map[string]string)
	for _, s := range cfg.Sources {
		if err := s.Check(); err != nil {
			return nil, err
		}
		if ids[s.URL] != "" && s.URL != "" {
			return nil, fmt.Errorf("bundle endpoint %s is given for trust domains %s and %s: each has its own", s.URL, ids[s.URL], s.TrustDomain)
		}
		ids[s.URL] = s.TrustDomain
	}
	if _, err := f.client(Source{}, nil); err != nil {
		return nil, fmt.Errorf("roots for bundle endpoints: %w", err)
	}
	f.add(cfg.Sources)
	return f, nil
}

// Set replaces the sources that were set before. Their trust domains are known
// when it returns, so that nothing else vouches for them meanwhile.
func (f *Federation) Set(sources []Source) {
	f.mu.Lock()
	if slices.Equal(f.set, sources) {
		f.mu.Unlock()
		return
	}
	f.set = slices.Clone(sources)
	for s, e := range f.entries {
		if slices.Contains(f.cfg.Sources, s) || slices.Contains(sources, s) {
			continue
		}
		if e.stop != nil {
			e.stop()
		}
		delete(f.entries, s)
		f.forget(s)
	}
	f.add(sources)
	f.mu.Unlock()
	f.changed()
}

func (f *Federation) changed() {
	if f.cfg.Changed != nil {
		f.cfg.Changed()
	}
}

// add is called under the lock, or before there is another goroutine.
func (f *Federation) add(sources []Source) {
	for _, s := range sources {
		if f.entries[s] != nil {
			continue
		}
		e := &entry{}
		f.entries[s] = e
		if s.PEM != "" {
			e.note(f.cfg.Now(), s, []byte(s.PEM), nil)
			f.say(s, e, nil)
			continue
		}
		if f.restore(s, e); f.ctx != nil {
			f.start(s, e)
		}
	}
}

// start is called under the lock.
func (f *Federation) start(s Source, e *entry) {
	if f.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(f.ctx)
	e.stop = stop
	f.ended.Go(func() { f.follow(ctx, s) })
}

// Run follows the sources until ctx ends.
func (f *Federation) Run(ctx context.Context) error {
	f.mu.Lock()
	f.ctx = ctx
	for s, e := range f.entries {
		if s.PEM == "" {
			f.start(s, e)
		}
	}
	f.mu.Unlock()
	<-ctx.Done()
	func() { // whoever was adding a source has done so; those that end need the lock
		f.mu.Lock()
		defer f.mu.Unlock()
	}()
	f.ended.Wait()
	return nil
}

// note takes what a look at the source gave into use, if it is good. It reports
// whether there are other roots now.
func (e *entry) note(now time.Time, s Source, data []byte, err error) bool {
	var b *bundle.Bundle
	if err == nil {
		b, err = judge(s.TrustDomain, data, now)
	}
	if err != nil {
		if e.problem == nil {
			e.since = now
		}
		e.problem = err
		return false
	}
	e.problem, e.looked, e.restored = nil, now, false
	if e.bundle != nil {
		gone, came := bundle.Diff(e.bundle, b)
		if len(gone)+len(came) == 0 {
			e.bundle = b // with its sequence number
			return false
		}
	}
	e.bundle, e.loaded = b, now
	return true
}

// report is told how a look at a source went. It returns the bundle in use, and
// whether it is what the look gave.
func (f *Federation) report(ctx context.Context, s Source, data []byte, err error) (used *bundle.Bundle, good bool) {
	f.mu.Lock()
	e := f.entries[s]
	if e == nil || ctx.Err() != nil {
		f.mu.Unlock()
		return nil, false
	}
	before := e.problem
	changed := e.note(f.cfg.Now(), s, data, err)
	f.say(s, e, before)
	used, good = e.bundle, e.problem == nil
	if f.cfg.Fetched != nil {
		f.cfg.Fetched(s.TrustDomain, good)
	}
	f.mu.Unlock()
	if changed {
		f.changed()
	}
	return used, good
}

// say logs what is new. It is called under the lock.
func (f *Federation) say(s Source, e *entry, before error) {
	switch {
	case e.problem != nil && (before == nil || before.Error() != e.problem.Error()):
		kept := "none"
		if e.bundle != nil {
			kept = e.looked.UTC().Format(time.RFC3339)
		}
		f.cfg.Log.Error("trust bundle refused, the last good one stays", "trustDomain", s.TrustDomain, "source", s.place(),
			"lastGood", kept, "error", e.problem)
	case e.problem == nil && (before != nil || e.loaded.Equal(e.looked)):
		f.cfg.Log.Info("trust bundle in use", "trustDomain", s.TrustDomain, "source", s.place(),
			"roots", len(e.bundle.Roots), "until", lastEnd(e.bundle.Roots).UTC().Format(time.RFC3339))
	}
}

// Domains returns the roots of each trust domain that a source names, none
// while no good bundle was read. Those of the empty one are for the mesh's own.
func (f *Federation) Domains() map[string][]*x509.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string][]*x509.Certificate)
	for s, e := range f.entries {
		out[s.TrustDomain] = append(out[s.TrustDomain], e.roots()...)
	}
	for td, roots := range out {
		slices.SortFunc(roots, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
		out[td] = slices.CompactFunc(roots, (*x509.Certificate).Equal)
	}
	return out
}

func (e *entry) roots() []*x509.Certificate {
	if e.bundle == nil {
		return nil
	}
	return e.bundle.Roots
}

// Root is a root of a Status.
type Root struct {
	Subject string    `json:"subject"`
	SHA256  string    `json:"sha256"`
	Until   time.Time `json:"until"`
}

// Status says how it stands with a source.
type Status struct {
	// TrustDomain is empty for the mesh's own.
	TrustDomain string `json:"trustDomain"`
	Source      string `json:"source"`
	// Profile is https_web or https_spiffe.
	Profile string `json:"profile,omitempty"`
	Via     string `json:"via"`
	// Roots are those in use; Until is when the last of them ends.
	Roots []Root    `json:"roots"`
	Until time.Time `json:"until,omitzero"`
	// Sequence and RefreshHint are what the bundle says of itself.
	Sequence    uint64 `json:"sequence,omitempty"`
	RefreshHint string `json:"refreshHint,omitempty"`
	// LoadedAt is since when they are in use, CheckedAt when the source was last
	// found to be good, and AgeSeconds how long that is ago.
	LoadedAt   time.Time `json:"loadedAt,omitzero"`
	CheckedAt  time.Time `json:"checkedAt,omitzero"`
	AgeSeconds float64   `json:"ageSeconds"`
	// Restored says that they are those that were kept before the start, and that
	// the source was not found to be good since.
	Restored bool `json:"restored,omitempty"`
	// Problem is why the source is not in use as it is, and what counts instead;
	// empty if all is well. Since is when that began.
	Problem string    `json:"problem,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// Status is that of all sources, by trust domain.
func (f *Federation) Status() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, out := f.cfg.Now(), []Status{}
	for s, e := range f.entries {
		out = append(out, e.status(s, now))
	}
	slices.SortFunc(out, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.TrustDomain, b.TrustDomain), cmp.Compare(a.Source, b.Source))
	})
	return out
}

func (e *entry) status(s Source, now time.Time) Status {
	st := Status{TrustDomain: s.TrustDomain, Source: s.place(), Profile: s.profile(), Via: s.Via, Roots: []Root{}, Restored: e.restored}
	if e.bundle != nil {
		for _, r := range e.bundle.Roots {
			st.Roots = append(st.Roots, Root{r.Subject.String(), certs.Fingerprint(r), r.NotAfter.UTC()})
		}
		st.Until = lastEnd(e.bundle.Roots).UTC()
		var refresh time.Duration
		if st.Sequence, refresh = e.bundle.Published(); refresh > 0 {
			st.RefreshHint = refresh.String()
		}
		st.LoadedAt, st.CheckedAt, st.AgeSeconds = e.loaded.UTC(), e.looked.UTC(), now.Sub(e.looked).Seconds()
		if s.PEM != "" {
			st.AgeSeconds = 0
		}
	}
	problem, since := e.problem, e.since
	if problem == nil && e.bundle != nil && st.Until.Before(now) {
		problem, since = errors.New("all roots have expired"), st.Until
	}
	if problem != nil {
		instead := "nobody of the trust domain is accepted"
		switch {
		case e.bundle != nil:
			instead = fmt.Sprintf("the bundle of %s counts, until %s", e.looked.UTC().Format(time.RFC3339), st.Until.Format(time.RFC3339))
		case s.TrustDomain == "":
			instead = "the roots of the signing CA alone count"
		}
		st.Problem, st.Since = problem.Error()+": "+instead, since.UTC()
	}
	return st
}

// jittered is up to a tenth less than d, so that replicas do not ask at once.
func jittered(d time.Duration) time.Duration {
	return d - time.Duration(rand.Float64()*float64(d)/10) //nolint:gosec // spreads waits, guards nothing
}
