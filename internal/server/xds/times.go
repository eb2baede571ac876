package xds

import (
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// generationTimes are when the units of each type were generated in a round.
type generationTimes struct {
	mu    sync.Mutex
	types [numTypes]history.Generation
}

// note is called by the goroutines that generate.
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

// list is of the types that something was generated of. It is nil for nil.
func (g *generationTimes) list() []history.Generation {
	if g == nil {
		return nil
	}
	var out []history.Generation
	for i, t := range g.types {
		if t.Units > 0 {
			t.Type = xdswire.ShortType(xdswire.PushOrder[i])
			out = append(out, t)
		}
	}
	return out
}
