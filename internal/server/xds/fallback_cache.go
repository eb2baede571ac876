package xds

import (
	"sync"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// maxFallbackBytes bounds the cache; when it is full, everything is dropped.
const maxFallbackBytes = 64 << 20

// fallbackCache holds the answers to names that no view has, so that each is
// encoded once for all streams.
type fallbackCache struct {
	mu     sync.Mutex
	byName map[fallbackKey]*xdswire.Resource
	size   int
}

type fallbackKey struct {
	typ  int
	name string
}

// get returns the cached answer, or makes it. It may return nil.
func (e *fallbackCache) get(typ int, name string, make func() (*xdswire.Resource, error)) (*xdswire.Resource, error) {
	k := fallbackKey{typ, name}
	e.mu.Lock()
	r := e.byName[k]
	e.mu.Unlock()
	if r != nil {
		return r, nil
	}
	r, err := make()
	if err != nil || r == nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if kept := e.byName[k]; kept != nil {
		return kept, nil
	}
	const overhead = 160 // of the map and the resource
	if size := r.Size() + overhead; size <= maxFallbackBytes {
		if e.byName == nil || e.size+size > maxFallbackBytes {
			e.byName, e.size = map[fallbackKey]*xdswire.Resource{}, 0
		}
		e.byName[k] = r
		e.size += size
	}
	return r, nil
}
