package xds

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// generate generates units on all processors.
func (h *Hub) generate(units []*unit) {
	var next atomic.Int64
	var wg sync.WaitGroup
	work := func() {
		for i := next.Add(1) - 1; int(i) < len(units); i = next.Add(1) - 1 {
			h.generateOne(units[i])
		}
	}
	for range min(runtime.GOMAXPROCS(0), len(units)) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

func (h *Hub) generateOne(u *unit) {
	t := typeIndex(u.key.Type())
	if h.times != nil && t >= 0 {
		began := h.cfg.Now()
		defer func() { h.times.note(t, began, h.cfg.Now()) }()
	}
	if err := h.guard("generate", u.key.Type(), func() { u.resources, u.err = u.key.Generate(&h.encoder) }); err != nil {
		u.err = err
	}
	if u.err != nil {
		u.resources = nil
		h.cfg.Metrics.failures.Inc()
		h.cfg.Log.Error("generation failed, the last good version stays",
			"type", xdswire.ShortType(u.key.Type()), "unit", fmt.Sprintf("%T", u.key), "error", u.err)
		return
	}
	if t >= 0 {
		h.cfg.Metrics.generated[t].Add(float64(len(u.resources)))
	}
}

// guard calls f and turns a panic into an error, so that a panic costs only one piece
// of generation.
func (h *Hub) guard(what, of string, f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s of %s: panic: %v", what, of, p)
			h.cfg.Metrics.panics.Inc()
			h.cfg.Log.Error("panic in generation", "what", what, "of", of, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	f()
	return nil
}

// generationTimes records when a round generated the units of each type.
type generationTimes struct {
	mu    sync.Mutex
	types [numTypes]history.Generation
}

// note records one unit. Several goroutines may call it.
func (g *generationTimes) note(i int, began, ended time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := &g.types[i]
	if t.Units == 0 || began.Before(t.Began) {
		t.Began = began
	}
	if ended.After(t.Ended) {
		t.Ended = ended
	}
	t.Units++
}

// list returns the types with generated units. It may be called on nil.
func (g *generationTimes) list() []history.Generation {
	if g == nil {
		return nil
	}
	var out []history.Generation
	for i, t := range g.types {
		if t.Units > 0 {
			t.Type = typeName(i)
			out = append(out, t)
		}
	}
	return out
}
