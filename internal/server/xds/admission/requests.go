package admission

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"
)

const (
	messageHeader = 5 // whether it is compressed, and its length
	// requestOverhead is the memory of a request besides its bytes, frameOverhead
	// the memory of a data frame besides its data. A request pays in advance for one
	// frame for each usualFrame bytes, and one more: a client that sends frames of a
	// usual size never waits for the budget in the middle of a request, while it
	// holds what other requests wait for.
	requestOverhead = 256
	frameOverhead   = 512
	usualFrame      = 4 << 10
)

// inbound is what the peer sends on one stream: requests, each of which counts
// from its length on until the handler is done with it.
type inbound struct {
	conn   *Conn
	stream uint32

	// Used by the goroutine that reads the connection.
	header [messageHeader]byte
	have   int // of the header
	left   int // of the request
	paid   int // in advance, for frames of the request
	late   *time.Timer

	done  chan struct{} // closed at the end
	mu    sync.Mutex
	ended bool
	asked bool  // the handler has asked for a request
	costs []int // of the requests that it is not done with, the last perhaps unfinished
}

type inboundKey struct{}

// CountRequests has the requests of all calls count for their peers. Refuse, which
// may be nil, is asked first: a call that it returns an error for is refused.
func CountRequests(refuse tap.ServerInHandle) grpc.ServerOption {
	return grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
		if refuse != nil {
			var err error
			if ctx, err = refuse(ctx, info); err != nil {
				return ctx, err
			}
		}
		return countRequests(ctx), nil
	})
}

// countRequests is called by the goroutine that reads the connection, when it has
// the headers of a call.
func countRequests(ctx context.Context) context.Context {
	c := ConnOf(ctx)
	if c == nil {
		return ctx
	}
	i := &inbound{conn: c, stream: c.opening, done: make(chan struct{})}
	i.late = time.AfterFunc(time.Hour, func() { c.end("a request was not finished in time") })
	i.late.Stop()
	c.frameMu.Lock()
	c.inbounds[i.stream] = i
	c.frameMu.Unlock()
	context.AfterFunc(ctx, i.end)
	return context.WithValue(ctx, inboundKey{}, i)
}

// inboundOf is the stream of the number, nil when it has ended or never began.
func (c *Conn) inboundOf(stream uint32) *inbound {
	c.frameMu.Lock()
	defer c.frameMu.Unlock()
	return c.inbounds[stream]
}

// NextRequest says that the handler of a call is done with the requests that it
// was given, and about to receive the next. The end of the call says so, too.
func NextRequest(ctx context.Context) {
	i, _ := ctx.Value(inboundKey{}).(*inbound)
	if i == nil {
		return
	}
	i.mu.Lock()
	done := 0
	if i.asked && len(i.costs) > 0 {
		done, i.costs = i.costs[0], i.costs[1:]
	}
	i.asked = true
	i.mu.Unlock()
	i.conn.release(done)
}

// end has nothing of the stream count any more.
func (i *inbound) end() {
	i.conn.frameMu.Lock()
	delete(i.conn.inbounds, i.stream)
	i.conn.frameMu.Unlock()
	close(i.done)
	i.mu.Lock()
	i.ended = true
	i.late.Stop()
	done := 0
	for _, n := range i.costs {
		done += n
	}
	i.costs = nil
	i.mu.Unlock()
	i.conn.release(done)
}

// take takes the next bytes, at most up to the end of a request. overhead is the
// memory of their frame besides its data. It reports false when the peer's budget
// had no room in time.
func (i *inbound) take(b []byte, overhead int) (n int, ok bool) {
	cost := 0
	if i.have == 0 {
		i.begin()
		cost += requestOverhead
	}
	if i.have < messageHeader {
		n = copy(i.header[i.have:], b)
		if i.have += n; i.have == messageHeader {
			i.left = int(binary.BigEndian.Uint32(i.header[1:]))
			// The request is in memory twice, as received and decoded. gRPC takes no
			// larger ones, and a compressed one may grow to that size.
			most := i.conn.conns.cfg.Limits.RequestBytes
			size := min(i.left, most)
			i.paid = (1 + size/usualFrame) * frameOverhead
			if i.header[0] != 0 {
				size = most
			}
			cost += 2*size + i.paid
		}
	} else {
		n = min(i.left, len(b))
		i.left -= n
	}
	if i.have == messageHeader && i.left == 0 {
		i.have = 0
		i.late.Stop()
	}
	paid := min(i.paid, overhead)
	i.paid -= paid
	cost += overhead - paid
	return n, cost == 0 || i.add(cost)
}

// begin begins a request, which is to be finished in time.
func (i *inbound) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended {
		i.late.Reset(i.conn.conns.cfg.Limits.RequestTime)
		i.costs = append(i.costs, 0)
	}
}

// add counts bytes for the last request. It reports false when there was no room
// for them in time.
func (i *inbound) add(bytes int) bool {
	held := i.conn.reserve(bytes, i.done)
	i.mu.Lock()
	counts := !i.ended && len(i.costs) > 0
	ended := i.ended
	if held && counts {
		i.costs[len(i.costs)-1] += bytes
	}
	i.mu.Unlock()
	if held && !counts {
		i.conn.release(bytes)
	}
	return held || ended
}
