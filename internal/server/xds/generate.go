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

// generate generates units on all processors. With an Observer it returns the times of
// generation by type.
func (h *Hub) generate(units []*unit) []history.Generation {
	var spans []span
	if h.cfg.Observer != nil {
		spans = make([]span, len(units))
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	work := func() {
		for i := next.Add(1) - 1; int(i) < len(units); i = next.Add(1) - 1 {
			if spans == nil {
				h.generateOne(units[i])
				continue
			}
			spans[i].began = h.cfg.Now()
			h.generateOne(units[i])
			spans[i].ended = h.cfg.Now()
		}
	}
	for range min(runtime.GOMAXPROCS(0), len(units)) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	return generations(units, spans)
}

// span is the time in which a unit was generated.
type span struct{ began, ended time.Time }

// generations sums up spans by type. There is one span for each unit, or none.
func generations(units []*unit, spans []span) (out []history.Generation) {
	var types [numTypes]history.Generation
	for n, s := range spans {
		i := typeIndex(units[n].key.Type())
		if i < 0 {
			continue
		}
		g := &types[i]
		if g.Units++; g.Units == 1 || s.began.Before(g.Began) {
			g.Began = s.began
		}
		if s.ended.After(g.Ended) {
			g.Ended = s.ended
		}
	}
	for i, g := range types {
		if g.Units > 0 {
			g.Type = typeName(i)
			out = append(out, g)
		}
	}
	return out
}

func (h *Hub) generateOne(u *unit) {
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
	if t := typeIndex(u.key.Type()); t >= 0 {
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
