// Package trust keeps the trust bundles of other trust domains, and further roots for
// the own one. They come from files, MeshConfig and SPIFFE bundle endpoints. The last
// good bundle of each source stays in use.
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

// Config configures Bundles. Now and Log are required.
type Config struct {
	// Sources are the permanent sources; Set replaces the others.
	Sources []Source
	// WebRoots (PEM) are the roots for certificates of endpoints without a SPIFFE
	// id; nil means the roots of the system.
	WebRoots []byte
	// Guard restricts the addresses of endpoints.
	Guard dial.Guard
	// Dir keeps the last good bundles of endpoints across restarts; it is created
	// when needed. Empty keeps none.
	Dir string
	// Changed is called after the roots of a trust domain have changed. May be nil.
	Changed func()
	// Fetched gets the result of each fetch from a source. May be nil.
	Fetched func(trustDomain string, ok bool)
	Now     func() time.Time
	Log     *slog.Logger
}

// Bundles are the trust bundles of all sources. They may be used concurrently.
type Bundles struct {
	cfg Config

	mu         sync.Mutex // guards what follows
	ctx        context.Context
	changeable []Source // by the last Set
	sources    map[Source]*sourceState
	running    sync.WaitGroup
}

// sourceState is the state of a source.
type sourceState struct {
	stop context.CancelFunc // ends follow; nil if it does not run
	// bundle is the bundle in use, nil if there was no good one yet.
	bundle         *bundle.Bundle
	loaded, looked time.Time // of the last change of bundle, and of the last good fetch
	problem        error
	since          time.Time // of the problem
	// restored means that the bundle was kept before the start. keptAt is the time at
	// which the current one was kept for the next start.
	restored bool
	keptAt   time.Time
	keptSum  [sha256.Size]byte
}

// New checks the permanent sources. Run reads files and endpoints.
func New(cfg Config) (*Bundles, error) {
	f := &Bundles{cfg: cfg, sources: make(map[Source]*sourceState)}
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

// Set replaces the sources of the last Set. When it returns, Domains lists their trust
// domains, with no roots at first, so that no other roots count for them.
func (f *Bundles) Set(sources []Source) {
	f.mu.Lock()
	if slices.Equal(f.changeable, sources) {
		f.mu.Unlock()
		return
	}
	f.changeable = slices.Clone(sources)
	for s, e := range f.sources {
		if slices.Contains(f.cfg.Sources, s) || slices.Contains(sources, s) {
			continue
		}
		if e.stop != nil {
			e.stop()
		}
		delete(f.sources, s)
		f.forget(s)
	}
	f.add(sources)
	f.mu.Unlock()
	f.changed()
}

func (f *Bundles) changed() {
	if f.cfg.Changed != nil {
		f.cfg.Changed()
	}
}

// add adds sources. The lock must be held.
func (f *Bundles) add(sources []Source) {
	for _, s := range sources {
		if f.sources[s] != nil {
			continue
		}
		e := &sourceState{}
		f.sources[s] = e
		if s.PEM != "" {
			e.note(f.cfg.Now(), s, []byte(s.PEM), nil)
			f.logChange(s, e, nil)
			continue
		}
		if f.restore(s, e); f.ctx != nil {
			f.start(s, e)
		}
	}
}

// start runs follow for a source. The lock must be held.
func (f *Bundles) start(s Source, e *sourceState) {
	if f.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(f.ctx)
	e.stop = stop
	f.running.Go(func() { f.follow(ctx, s) })
}

// Run follows the sources until ctx ends.
func (f *Bundles) Run(ctx context.Context) error {
	f.mu.Lock()
	f.ctx = ctx
	for s, e := range f.sources {
		if s.PEM == "" {
			f.start(s, e)
		}
	}
	f.mu.Unlock()
	<-ctx.Done()
	func() { // waits for a concurrent Set; follow needs the lock to end
		f.mu.Lock()
		defer f.mu.Unlock()
	}()
	f.running.Wait()
	return nil
}

// note takes fetched data into use if it is a good bundle. It reports whether the roots
// have changed.
func (e *sourceState) note(now time.Time, s Source, data []byte, err error) bool {
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

// report records the result of a fetch. It returns the bundle in use, and whether it is
// the fetched one.
func (f *Bundles) report(ctx context.Context, s Source, data []byte, err error) (used *bundle.Bundle, good bool) {
	f.mu.Lock()
	e := f.sources[s]
	if e == nil || ctx.Err() != nil {
		f.mu.Unlock()
		return nil, false
	}
	before := e.problem
	changed := e.note(f.cfg.Now(), s, data, err)
	f.logChange(s, e, before)
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

// logChange logs a new bundle or a new problem. The lock must be held.
func (f *Bundles) logChange(s Source, e *sourceState, before error) {
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

// Domains returns the roots of the trust domain of each source, none before the first
// good bundle. The empty trust domain stands for the mesh's own.
func (f *Bundles) Domains() map[string][]*x509.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string][]*x509.Certificate)
	for s, e := range f.sources {
		out[s.TrustDomain] = append(out[s.TrustDomain], e.roots()...)
	}
	for td, roots := range out {
		slices.SortFunc(roots, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
		out[td] = slices.CompactFunc(roots, (*x509.Certificate).Equal)
	}
	return out
}

func (e *sourceState) roots() []*x509.Certificate {
	if e.bundle == nil {
		return nil
	}
	return e.bundle.Roots
}

// Root describes a root in a Status.
type Root struct {
	Subject string    `json:"subject"`
	SHA256  string    `json:"sha256"`
	Until   time.Time `json:"until"`
}

// Status reports the state of a source.
type Status struct {
	// TrustDomain is empty for the mesh's own.
	TrustDomain string `json:"trustDomain"`
	Source      string `json:"source"`
	// Profile is https_web or https_spiffe.
	Profile string `json:"profile,omitempty"`
	Via     string `json:"via"`
	// Roots are the roots in use; Until is the time at which the last one expires.
	Roots []Root    `json:"roots"`
	Until time.Time `json:"until,omitzero"`
	// Sequence and RefreshHint are fields of the bundle.
	Sequence    uint64 `json:"sequence,omitempty"`
	RefreshHint string `json:"refreshHint,omitempty"`
	// LoadedAt is the time of the last change of Roots, CheckedAt the time of the
	// last good fetch, AgeSeconds the time since then.
	LoadedAt   time.Time `json:"loadedAt,omitzero"`
	CheckedAt  time.Time `json:"checkedAt,omitzero"`
	AgeSeconds float64   `json:"ageSeconds"`
	// Restored means that Roots were kept before the start, and that there was no
	// good fetch since.
	Restored bool `json:"restored,omitempty"`
	// Problem is the reason why the source's current data is not in use, and the
	// consequence; empty if there is none. Since is the start of the problem.
	Problem string    `json:"problem,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// Status returns the status of all sources, by trust domain.
func (f *Bundles) Status() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, out := f.cfg.Now(), []Status{}
	for s, e := range f.sources {
		out = append(out, e.status(s, now))
	}
	slices.SortFunc(out, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.TrustDomain, b.TrustDomain), cmp.Compare(a.Source, b.Source))
	})
	return out
}

func (e *sourceState) status(s Source, now time.Time) Status {
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

// jittered returns d less up to a tenth, so that replicas do not fetch at once.
func jittered(d time.Duration) time.Duration {
	return d - time.Duration(rand.Float64()*float64(d)/10) //nolint:gosec // spreads waits, guards nothing
}
