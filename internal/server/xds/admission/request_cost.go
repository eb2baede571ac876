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
	messageHeader = 5 // a flag for compression, and the length
	// requestOverhead is the memory of a request besides its bytes, frameOverhead
	// the memory of a data frame besides its data. A request pays in advance for one
	// frame for each usualFrame bytes, and one more: a client that sends frames of a
	// usual size never waits for the budget in the middle of a request, while it
	// holds what other requests wait for.
	requestOverhead = 256
	frameOverhead   = 512
	usualFrame      = 4 << 10
)

// inboundStream counts the requests on one stream. A request counts from the moment its
// length is known until its handler has finished it.
type inboundStream struct {
	conn   *Conn
	stream uint32

	// For the goroutine that reads the connection.
	header [messageHeader]byte
	have   int // bytes of the header
	left   int // bytes of the request that have not arrived
	paid   int // in advance, for frames of the request
	late   *time.Timer

	done  chan struct{} // closed at the end
	mu    sync.Mutex
	ended bool
	asked bool  // the handler has asked for a request
	costs []int // of unfinished requests; the last may be incomplete
}

type inboundKey struct{}

// CountRequests makes the requests of all calls count for their peers. refuse, which
// may be nil, is called first and may reject a call.
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

// countRequests runs on the goroutine that reads the connection, when the headers of a
// call have arrived.
func countRequests(ctx context.Context) context.Context {
	c := ConnOf(ctx)
	if c == nil {
		return ctx
	}
	i := &inboundStream{conn: c, stream: c.opening, done: make(chan struct{})}
	i.late = time.AfterFunc(time.Hour, func() { c.end("a request was not finished in time") })
	i.late.Stop()
	c.frameMu.Lock()
	c.inbounds[i.stream] = i
	c.frameMu.Unlock()
	context.AfterFunc(ctx, i.end)
	return context.WithValue(ctx, inboundKey{}, i)
}

// inboundOf returns the stream with the number, or nil if it has ended or does not
// exist.
func (c *Conn) inboundOf(stream uint32) *inboundStream {
	c.frameMu.Lock()
	defer c.frameMu.Unlock()
	return c.inbounds[stream]
}

// NextRequest reports that the handler of a call has finished its requests and receives
// the next one. The end of the call has the same effect.
func NextRequest(ctx context.Context) {
	i, _ := ctx.Value(inboundKey{}).(*inboundStream)
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

// end releases everything of the stream.
func (i *inboundStream) end() {
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
func (i *inboundStream) take(b []byte, overhead int) (n int, ok bool) {
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
		i.conn.conns.arrived.Add(int64(n))
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

// begin starts a request and its time limit.
func (i *inboundStream) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended {
		i.late.Reset(i.conn.conns.cfg.Limits.RequestTime)
		i.costs = append(i.costs, 0)
	}
}

// add counts bytes for the last request. It reports false if there was no room for them
// in time.
func (i *inboundStream) add(bytes int) bool {
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
