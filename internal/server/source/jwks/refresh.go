// Package jwks fetches the key sets of RequestAuthentications again and again, so that
// proxies need not connect to addresses that the objects name.
package jwks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Config configures a Fetcher. All fields but Every and Dir are required.
type Config struct {
	// Get fetches a document of a URL, of at most keyset.MaxSize bytes. Client makes one.
	Get func(ctx context.Context, url string) ([]byte, error)
	// Publish gets the key sets after the first fetch of all wanted ones, at the latest
	// after firstWait, and after each change. A key set that was never fetched is missing.
	// Publish must neither block nor change the map.
	Publish func(map[snapshot.KeySource]string)
	// Fetched gets the result of each fetch.
	Fetched func(ok bool)
	Log     *slog.Logger
	// Every is the longest interval between two fetches of a key set; the shortest is half
	// of it. The default is DefaultEvery.
	Every time.Duration
	// Dir is a directory that keeps fetched keys for the next start.
	Dir string
	// Jitter returns a random duration between 0 and its argument.
	Jitter func(time.Duration) time.Duration
	Now    func() time.Time
}

// DefaultEvery is the default of Config.Every.
const DefaultEvery = 5 * time.Minute

// Limits of fetches.
const (
	// atOnce bounds the fetches at a time, and those of sources that failed before, of one
	// namespace and of one host: slow servers leave room for others.
	atOnce, atOnceFailed, atOnceNamespace, atOnceHost = 16, 8, 4, 8
	// maxNamespaceSize bounds the keys that the rules of a namespace need, in bytes.
	maxNamespaceSize = 4 << 20

	firstWait = 5 * time.Second
	retry     = 5 * time.Second // after the first failure; it doubles up to Every
)

// Fetcher fetches key sets periodically. If a fetch fails, the last keys stay.
type Fetcher struct {
	cfg  Config
	wake chan struct{}

	mu     sync.Mutex
	want   []snapshot.WantedKeys
	status []Status // never changed after it is set
}

// Status describes a key set.
type Status struct {
	Source string
	Keys   int // number of keys in use
	// Fetched is the time of the last success, Next the time of the next fetch.
	Fetched time.Time `json:",omitzero"`
	Next    time.Time `json:",omitzero"`
	Problem string    `json:",omitempty"`
	Since   time.Time `json:",omitzero"` // of the problem
	// LeftOut holds the reasons why keys of the set are not used.
	LeftOut []string `json:",omitempty"`
}

// Faults returns a function that reports why a key set cannot be fetched, "" if it can, and whether its
// last keys count. Of several problems of a key set, the first one counts.
func Faults(all []Status) func(snapshot.KeySource) (fault string, kept bool) {
	of := make(map[string]*Status)
	for i := range all {
		if st := &all[i]; st.Problem != "" && of[st.Source] == nil {
			of[st.Source] = st
		}
	}
	return func(source snapshot.KeySource) (string, bool) {
		st := of[source.String()]
		if st == nil {
			return "", false
		}
		return st.Problem, st.Keys > 0
	}
}

// New returns a Fetcher. Run makes it work.
func New(cfg Config) *Fetcher {
	cfg.Every = cmp.Or(cfg.Every, DefaultEvery)
	return &Fetcher{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Want sets the key sets to fetch. It never blocks.
func (f *Fetcher) Want(want []snapshot.WantedKeys) {
	f.mu.Lock()
	f.want = slices.Clone(want)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Status returns the state of all key sets, by source. The caller must not change it.
func (f *Fetcher) Status() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// entry is the state of a key set.
type entry struct {
	snapshot.KeySource
	namespaces []string // whose policies need it
	timeout    time.Duration
	host       string // of its server
	keys       keys
	running    bool
	asked      bool // fetched at least once, with or without success
	failures   int
	status     Status
	saved      time.Time // the time of the fetch in the file with the keys
}

// answer is the result of a fetch.
type answer struct {
	of   *entry
	load loadKeys
	keys keys
	err  error
}

// run is the state of Run.
type run struct {
	*Fetcher
	known   map[snapshot.KeySource]*entry
	answers chan answer
	running load
	// published reports whether key sets were published, changed whether they changed
	// since.
	published, changed bool
	swept              bool // once, for what earlier processes saved
}

// Run fetches until ctx ends; then it returns nil.
func (f *Fetcher) Run(ctx context.Context) error {
	r := &run{Fetcher: f, known: make(map[snapshot.KeySource]*entry), answers: make(chan answer), running: newLoad()}
	var fetches sync.WaitGroup
	defer fetches.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	select {
	case <-ctx.Done():
		return nil
	case <-f.wake: // the first Want
	}
	late := time.After(firstWait)
	for {
		r.follow()
		next := r.start(ctx, &fetches)
		r.publish(false)
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-late:
			r.publish(true)
		case a := <-r.answers:
			r.take(a)
		case <-time.After(next):
		}
	}
}

// follow adds the wanted key sets and forgets the others.
func (r *run) follow() {
	r.mu.Lock()
	want := r.want
	r.mu.Unlock()
	wanted := make(map[snapshot.KeySource]bool, len(want))
	for _, w := range want {
		e := r.known[w.KeySource]
		if e == nil {
			e = &entry{KeySource: w.KeySource, host: hostOf(cmp.Or(w.URL, w.Issuer)), status: Status{Source: w.String(), Next: r.cfg.Now()}}
			r.known[w.KeySource] = e
			r.restore(e)
		}
		if !wanted[w.KeySource] {
			wanted[w.KeySource] = true
			e.namespaces, e.timeout = nil, 0
		}
		e.namespaces, e.timeout = append(e.namespaces, w.Namespace), max(e.timeout, w.Timeout)
	}
	before := len(r.known)
	maps.DeleteFunc(r.known, func(s snapshot.KeySource, e *entry) bool {
		r.changed = r.changed || !wanted[s] && e.keys.text != ""
		return !wanted[s]
	})
	if !r.swept || len(r.known) < before {
		r.swept = true
		r.sweep()
	}
}

// start starts the fetches that are due, and returns the time until others are. A due fetch
// without room starts when another one ends.
func (r *run) start(ctx context.Context, fetches *sync.WaitGroup) (next time.Duration) {
	var due []*entry
	now := r.cfg.Now()
	next = r.cfg.Every
	for _, e := range r.known {
		switch wait := e.status.Next.Sub(now); {
		case e.running:
		case wait > 0:
			next = min(next, wait)
		default:
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *entry) int {
		return cmp.Or(a.status.Next.Compare(b.status.Next), a.Compare(b.KeySource))
	})
	for {
		e := r.running.choose(due)
		if e == nil {
			return next
		}
		r.fetch(ctx, fetches, e)
	}
}

// fetch starts the fetch of a key set.
func (r *run) fetch(ctx context.Context, fetches *sync.WaitGroup, e *entry) {
	e.running = true
	a := answer{of: e, load: loadOf(e)}
	r.running.add(a.load, 1)
	source, timeout := e.KeySource, e.timeout
	fetches.Go(func() {
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		a.keys, a.err = fetch(limited, r.cfg.Get, source)
		if errors.Is(limited.Err(), context.DeadlineExceeded) {
			a.err = errors.New("no answer within " + timeout.String())
		}
		select {
		case r.answers <- a:
		case <-ctx.Done():
		}
	})
}

// take records the result of a fetch.
func (r *run) take(a answer) {
	e, now := a.of, r.cfg.Now()
	r.running.add(a.load, -1)
	e.running, e.asked = false, true
	r.cfg.Fetched(a.err == nil)
	if r.known[e.KeySource] != e {
		return // it is not wanted any more
	}
	if a.err == nil {
		a.err = r.checkSize(e, len(a.keys.text))
	}
	if a.err != nil {
		r.fail(e, a.err, now)
		return
	}
	if e.status.Problem != "" {
		r.cfg.Log.Info("key set is fetched again", "source", e.KeySource)
	}
	e.failures = 0
	e.status = Status{
		Source: e.status.Source, Keys: a.keys.number, Fetched: now, Next: now.Add(r.cfg.Every/2 + r.cfg.Jitter(r.cfg.Every/2)),
		LeftOut: a.keys.leftOut,
	}
	changed := a.keys.text != e.keys.text
	e.keys = a.keys
	r.save(e, changed)
	if !changed {
		return
	}
	r.changed = true
	r.cfg.Log.Info("key set changed", "source", e.KeySource, "keys", a.keys.number, "left_out", a.keys.leftOut)
}

// checkSize returns an error if no namespace that needs a key set has room for keys of a size beside
// those of its other key sets.
func (r *run) checkSize(e *entry, size int) error {
	for _, namespace := range e.namespaces {
		held := size
		for _, other := range r.known {
			if other != e && slices.Contains(other.namespaces, namespace) {
				held += len(other.keys.text)
			}
		}
		if held <= maxNamespaceSize {
			return nil
		}
	}
	return fmt.Errorf("it has %d bytes of keys, with which the key sets of namespace %s have more than %d", size, e.namespaces[0], maxNamespaceSize)
}

// fail records a failure. The last keys stay.
func (r *run) fail(e *entry, err error, now time.Time) {
	if e.status.Problem == "" {
		e.status.Since = now
		if e.keys.text == "" {
			r.cfg.Log.Warn("key set cannot be fetched, tokens that need it are refused", "source", e.KeySource, "error", err)
		} else {
			r.cfg.Log.Warn("key set cannot be fetched, its last keys stay", "source", e.KeySource, "error", err)
		}
	}
	e.status.Problem = err.Error()
	pause := r.cfg.Every
	if e.failures < 16 {
		pause = min(pause, retry<<e.failures)
		e.failures++
	}
	e.status.Next = now.Add(pause/2 + r.cfg.Jitter(pause/2))
}

// publish publishes changed key sets. The first time, it waits until all were asked for,
// unless it is late.
func (r *run) publish(late bool) {
	list := make([]Status, 0, len(r.known))
	complete := true
	for _, e := range r.known {
		list = append(list, e.status)
		complete = complete && e.asked
	}
	slices.SortFunc(list, func(a, b Status) int { return cmp.Compare(a.Source, b.Source) })
	r.mu.Lock()
	r.status = list
	r.mu.Unlock()
	if r.published && !r.changed || !r.published && !complete && !late {
		return
	}
	out := make(map[snapshot.KeySource]string, len(r.known))
	for source, e := range r.known {
		if e.keys.text != "" {
			out[source] = e.keys.text
		}
	}
	r.published, r.changed = true, false
	r.cfg.Publish(out)
}
