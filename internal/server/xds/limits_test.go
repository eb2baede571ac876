package xds

import (
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestLimitsOfHTTP2: A proxy that exceeds the default limits works with higher ones.
func TestLimitsOfHTTP2(t *testing.T) {
	for name, tt := range map[string]struct {
		limits func(*Limits)
		pings  int
		header string
		served bool
	}{
		"pings":              {func(*Limits) {}, 100, "", false},
		"pings allowed":      {func(l *Limits) { l.Ping = time.Nanosecond }, 100, "", true},
		"header":             {func(l *Limits) { l.Headers = 2 << 10 }, 0, strings.Repeat("h", 3<<10), false},
		"header as it comes": {func(*Limits) {}, 0, strings.Repeat("h", 3<<10), true},
	} {
		t.Run(name, func(t *testing.T) {
			b := startServer(t, small(), func(c *Config, _ *Access) { tt.limits(&c.Limits) })
			c := b.dialRaw()
			for i := range tt.pings {
				c.do(c.fr.WritePing(false, [8]byte{byte(i)}))
			}
			c.open(1, hpack.HeaderField{Name: "x-test", Value: tt.header})
			c.send(1, &discoveryv3.DeltaDiscoveryRequest{Node: testNode("p"), TypeUrl: xdswire.ClusterType})
			count := func(f http2.FrameType) int64 { return c.frames[f].Load() }
			b.eventually("an answer", func() bool {
				return count(http2.FrameData) > 0 || count(http2.FrameRSTStream)+count(http2.FrameGoAway) > 0 || len(c.ended) > 0
			})
			if got := count(http2.FrameData) > 0; got != tt.served {
				t.Errorf("served: %t, want %t", got, tt.served)
			}
		})
	}
}
