package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestShutdown: a server that stops reports it while streams are open. It waits for no
// silent connection, but for a proxy that reads nothing, which it gives a time to end.
func TestShutdown(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		timeout time.Duration
		ends    bool
	}{{"the proxy ends in time", time.Hour, true}, {"the proxy never ends", time.Second, false}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, stop, done := launch(t, func(c *Config) {
				c.ShutdownTimeout = test.timeout
				c.Limits.Handshake, c.Limits.FirstRequest = time.Hour, time.Hour
			})
			waitFor(t, "readiness", func() bool { return s.ready.Load() })
			for _, l := range []net.Listener{s.plain, s.secure} {
				conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			stream, err := dialSecure(t, s, clientTLS(t, s))
			if err != nil {
				t.Fatal(err)
			}
			release := holdUp(t, s)
			waitFor(t, "two proxies", func() bool { return len(s.hub.Proxies()) == 2 })
			stop()
			for err == nil {
				_, err = stream.Recv()
			}
			if st := status.Convert(err); st.Code() != codes.Unavailable || st.Message() != "server is shutting down" {
				t.Errorf("the stream ended with %v", err)
			}
			if test.ends {
				if code, body := get(t, s, "/ready"); code != http.StatusServiceUnavailable {
					t.Errorf("/ready answers %d %s, want 503", code, body)
				}
				release()
			}
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("the server ended with %v", err)
				}
			case <-time.After(patience):
				t.Fatal("the server does not end")
			}
		})
	}
}

// holdUp opens a plaintext stream with a window of 0. release closes its connection.
func holdUp(t *testing.T, s *Server) (release func()) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", s.plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, conn)
	}()
	var block strings.Builder
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":authority", "test"},
		{":path", discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	request, err := (xdswire.ServerCodec{}).Marshal(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.2~stuck.apps~apps.svc.cluster.local"}, TypeUrl: xdswire.ClusterType,
	})
	if err != nil {
		t.Fatal(err)
	}
	message := append([]byte{0, 0, 0, 0, byte(request.Len())}, request.Materialize()...)
	_, err = io.WriteString(conn, http2.ClientPreface)
	fr := http2.NewFramer(conn, nil)
	err = errors.Join(err,
		fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}),
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndHeaders: true}),
		fr.WriteData(1, false, message))
	if err != nil {
		t.Fatal(err)
	}
	return func() { _ = conn.Close() }
}
