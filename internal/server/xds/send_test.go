package xds

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestSlowPeersAreNotStalled: with a small share of the network each, peers
// that read are not taken for peers that do not.
func TestSlowPeersAreNotStalled(t *testing.T) {
	const limit = 30 * time.Second
	for _, tc := range []struct {
		name string
		size int
		rate int64 // what the connection writes a second
		want time.Duration
	}{
		{"small, nothing moves", 1, 0, limit},
		{"large, nothing moves", 4 << 20, 0, limit},
		{"large, too slow", 4 << 20, slowest / 2, limit},
		{"large, slow", 4 << 20, slowest, 4 * limit}, // looked at every 30 s, done after 94 s
		{"small, others move", 1, 10 * slowest, 2 * limit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var e xdswire.Encoder
				r := e.Raw(xdswire.ClusterType, "c", make([]byte, tc.size))
				frame := xdswire.NewFrame(xdswire.Header{TypeURL: xdswire.ClusterType}, xdswire.NewBody(xdswire.SotW, r))
				c := &testConn{begin: time.Now(), rate: tc.rate}
				w := newWrites(limit, time.Now, c, func() {}, func() {})
				if err := w.send(discard{}, frame); err != nil {
					t.Fatal(err)
				}
				if w.hasRoom() != (tc.size < maxUnwritten) {
					t.Errorf("room for more is %v behind %d bytes", w.hasRoom(), tc.size)
				}
				time.Sleep(time.Hour)
				if c.stalled != tc.want {
					t.Errorf("closed after %v, want %v", c.stalled, tc.want)
				}
			})
		})
	}
}

type testConn struct {
	begin   time.Time
	rate    int64
	stalled time.Duration
}

func (c *testConn) Written() int64 { return int64(time.Since(c.begin).Seconds()) * c.rate }

func (c *testConn) Stall() { c.stalled = time.Since(c.begin) }

// discard is a stream of a peer that never reads.
type discard struct{ grpc.ServerStream }

func (discard) SendMsg(any) error { return nil }
