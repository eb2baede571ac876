package xds

import (
	"sync"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// maxEmpties bounds the bytes of empty answers that are kept; beyond it all
// are forgotten.
const maxEmpties = 64 << 20

// empties are the empty answers to names that no view has: each is encoded
// once for all streams that ask for its name.
type empties struct {
	mu   sync.Mutex
	by   map[emptyKey]*xdswire.Resource
	size int
}

type emptyKey struct {
	typ  int
	name string
}

// get makes an answer that is not kept. It may be nil.
func (e *empties) get(typ int, name string, make func() (*xdswire.Resource, error)) (*xdswire.Resource, error) {
	k := emptyKey{typ, name}
	e.mu.Lock()
	r := e.by[k]
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
	if kept := e.by[k]; kept != nil {
		return kept, nil
	}
	const overhead = 160 // of the table and the resource
	if size := r.Size() + overhead; size <= maxEmpties {
		if e.by == nil || e.size+size > maxEmpties {
			e.by, e.size = map[emptyKey]*xdswire.Resource{}, 0
		}
		e.by[k] = r
		e.size += size
	}
	return r, nil
}
