package xds

import (
	"context"
	"runtime"
	"runtime/metrics"
	"time"

	"github.com/meshctl/meshctl/internal/server/xds/admission"
)

// Above the share pressure of the memory limit, connections are closed. A peer that
// holds less than worthClosing keeps its connections, as other parts then use the
// memory.
const (
	pressurePoll = 500 * time.Millisecond // between checks
	pressure     = 0.8
	worthClosing = 4 << 20
)

// relieve closes the largest connection of the peer that holds most while memory is
// short, at most one for each garbage collection.
func (h *Hub) relieve(ctx context.Context) {
	tick := time.NewTicker(pressurePoll)
	defer tick.Stop()
	collections := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	last := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if h.cfg.Memory() <= pressure {
			continue
		}
		if metrics.Read(collections); collections[0].Value.Uint64() == last {
			runtime.GC() // otherwise the freed memory would not show
			continue
		}
		last = collections[0].Value.Uint64()
		h.evict("memory is short")
	}
}

// evict closes the largest connection of the peer that holds most.
func (h *Hub) evict(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var largest *admission.Conn
	most := worthClosing
	for _, c := range h.conns {
		if n, bytes := c.Largest(); bytes > most {
			largest, most = n, bytes
		}
	}
	if largest != nil {
		go largest.Evict(why)
	}
}
