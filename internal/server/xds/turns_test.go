package xds

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestLowMemoryDelaysOnlyNewStreams: Low memory delays new streams and does not affect
// others.
func TestLowMemoryDelaysOnlyNewStreams(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		var full atomic.Bool
		b := startServer(t, small(), func(c *Config, _ *Access) {
			c.Limits.MemoryWait = time.Minute
			c.Memory = func() float64 {
				if full.Load() {
					return 0.9
				}
				return 0.1
			}
		})
		old := b.connect(v, "old")
		old.subscribe("CDS")
		old.wantAck("CDS", "a=a:1 b=b:1")
		full.Store(true)
		c := b.connect(v, "new")
		c.subscribe("CDS")
		b.eventually("waiting", func() bool { return b.metric("meshctl_xds_waiting_streams", "") == 1 })
		b.mesh.set("CDS", "shared", "a", "a:2")
		b.push()
		old.recv()
		if n := len(b.hub.Proxies()); n != 1 {
			t.Errorf("%d proxies, want the old one", n)
		}
		full.Store(false)
		c.wantAck("CDS", "a=a:2 b=b:1")
	})
}

// TestStreamsStartInTurns: More streams connect than may start at a time. Some of them
// never request anything.
func TestStreamsStartInTurns(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, v xdswire.Variant) {
		t.Parallel()
		b := startServer(t, small(), func(c *Config, _ *Access) { c.Limits.Starting = 1 })
		idle := b.connect(v, "idle")
		idle.request("unknown", "", []string{"x"}, nil, "")
		var clients []*client
		for i := range 30 {
			c := b.connect(v, fmt.Sprintf("p%d", i))
			c.subscribe("CDS")
			clients = append(clients, c)
		}
		for _, c := range clients {
			c.wantAck("CDS", "a=a:1 b=b:1")
		}
	})
}

// TestHubEndsStreamsThatWait: The hub ends while a stream waits for its turn.
func TestHubEndsStreamsThatWait(t *testing.T) {
	b := startServer(t, small(), func(c *Config, _ *Access) { c.Memory = func() float64 { return 1 } })
	c := b.connect(xdswire.SotW, "p")
	c.subscribe("CDS")
	b.eventually("waiting", func() bool { return b.metric("meshctl_xds_waiting_streams", "") == 1 })
	b.stop()
	if s := c.status(); s.Code() != codes.Unavailable || s.Message() != "server is shutting down" {
		t.Errorf("got %v", s)
	}
}
