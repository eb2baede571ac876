package webhook

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/serving"
)

const (
	// maxUnderWay bounds the bytes of all requests under way, and requestCost is what a request
	// costs besides its body and its decoded values. One of the largest requests fits, or about
	// 1,000 with an ordinary pod.
	maxUnderWay = 96 << 20
	requestCost = 16 << 10
	// readChunk is how much of a body is read at a time.
	readChunk = 16 << 10
)

// errNoRoom is the error of a request that lost its room to that of another source.
var errNoRoom = errors.New("the requests of this source take too much memory")

// bodyBudget bounds the memory of the requests under way. If they need more, the source that holds the most
// loses its largest request. A source with many or slow requests therefore fails none of another.
type bodyBudget struct {
	most int

	mu       sync.Mutex // guards what follows
	used     int
	requests map[*heldRequest]struct{}
	sources  map[netip.Prefix]int // bytes
}

// heldRequest is a request under way.
type heldRequest struct {
	source netip.Prefix
	size   int
	lost   bool   // it has no room any more
	end    func() // makes it end; called at most once, and not after release
}

func newBodyBudget(most int) *bodyBudget {
	return &bodyBudget{most: most, requests: make(map[*heldRequest]struct{}), sources: make(map[netip.Prefix]int)}
}

// hold counts a request until release. end is called if it loses its room; it must not block.
func (b *bodyBudget) hold(source netip.Prefix, end func()) *heldRequest {
	r := &heldRequest{source: source, end: end}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests[r] = struct{}{}
	b.add(r, requestCost)
	return r
}

// grow counts further bytes of a request. It returns false if the request lost its room.
func (b *bodyBudget) grow(r *heldRequest, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !r.lost {
		b.add(r, n)
	}
	return !r.lost
}

// release ends the count of a request.
func (b *bodyBudget) release(r *heldRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(r)
}

// add makes a request larger, and others end if there is no room. The lock must be held.
func (b *bodyBudget) add(r *heldRequest, n int) {
	r.size += n
	b.used += n
	b.sources[r.source] += n
	for b.used > b.most {
		var largest *heldRequest
		for r := range b.requests {
			if largest == nil || b.sources[r.source] > b.sources[largest.source] ||
				b.sources[r.source] == b.sources[largest.source] && r.size > largest.size {
				largest = r
			}
		}
		b.drop(largest)
		largest.lost = true
		largest.end()
	}
}

// drop forgets a request. The lock must be held.
func (b *bodyBudget) drop(r *heldRequest) {
	if _, held := b.requests[r]; !held {
		return
	}
	delete(b.requests, r)
	b.used -= r.size
	if b.sources[r.source] -= r.size; b.sources[r.source] == 0 {
		delete(b.sources, r.source)
	}
}

// under calls serve with the body of a request, counted until serve returns, or with the reason why it
// could not be read. grow counts what the request needs besides. The context of the request ends when the caller leaves, after maxTime, and when
// the request loses its room.
func (b *bodyBudget) under(w http.ResponseWriter, r *http.Request, serve func(ctx context.Context, body []byte, grow func(int) bool, err error)) {
	ctx, cancel := context.WithTimeoutCause(r.Context(), maxTime, errTooLong)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	control := http.NewResponseController(w)
	if deadline, ok := ctx.Deadline(); ok { // an error only means that the server's own bound holds
		_ = control.SetReadDeadline(deadline)
	}
	held := b.hold(serving.SourceOf(r.RemoteAddr), func() {
		end(errNoRoom)
		_ = control.SetReadDeadline(time.Unix(1, 0)) // ends a Read that waits
	})
	defer b.release(held)
	body, err := b.read(held, http.MaxBytesReader(w, r.Body, maxReview))
	serve(ctx, body, func(n int) bool { return b.grow(held, n) }, err)
}

// read reads a body.
func (b *bodyBudget) read(held *heldRequest, from io.Reader) ([]byte, error) {
	var body []byte
	chunk := make([]byte, readChunk)
	for {
		n, err := from.Read(chunk)
		if !b.grow(held, n) {
			return nil, errNoRoom
		}
		body = append(body, chunk[:n]...)
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
