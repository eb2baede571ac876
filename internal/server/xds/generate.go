package xds

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// generate generates units on all processors. It calls between after each unit that the
// calling goroutine generates.
func (h *Hub) generate(units []*unit, between func()) {
	var next atomic.Int64
	var wg sync.WaitGroup
	work := func(between func()) {
		for i := next.Add(1) - 1; int(i) < len(units); i = next.Add(1) - 1 {
			h.generateOne(units[i])
			between()
		}
	}
	for range min(runtime.GOMAXPROCS(0), len(units)) - 1 {
		wg.Go(func() { work(func() {}) })
	}
	work(between)
	wg.Wait()
}

func (h *Hub) generateOne(u *unit) {
	if err := h.guard("generate", u.key.Type(), func() { u.resources, u.err = h.generateKey(u) }); err != nil {
		u.err = err
	}
	for _, f := range h.patchFaults.take(u) {
		h.cfg.Log.Warn("a patch has no effect on a resource, and perhaps on others, because the result would be invalid",
			"object", f.Filter.String(), "patch", fmt.Sprintf("spec.configPatches[%d]", f.Patch), "resource", f.Resource, "reason", f.Reason)
	}
	if u.err != nil {
		u.resources = nil
		h.cfg.Metrics.failures.Inc()
		h.cfg.Log.Error("generation failed, the last good version stays",
			"type", xdswire.ShortType(u.key.Type()), "unit", fmt.Sprintf("%T", u.key), "error", u.err)
		return
	}
	if !slices.IsSortedFunc(u.resources, compareNames) {
		u.resources = slices.Clone(u.resources)
		slices.SortStableFunc(u.resources, compareNames)
	}
	// Most virtual hosts of a unit were in an earlier unit: Encoded counts the others.
	if t := typeIndex(u.key.Type()); t >= 0 && t != vhds {
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
