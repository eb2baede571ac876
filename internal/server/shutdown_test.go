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

// TestShutdown: the server stops in time, also with a proxy that reads nothing and with
// silent connections.
func TestShutdown(t *testing.T) {
	t.Parallel()
	s, stop, done := launch(t, func(c *Config) {
		c.ShutdownTimeout = time.Second
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
	holdUp(t, s)
	waitFor(t, "two proxies", func() bool { return len(s.hub.Proxies()) == 2 })
	stop()
	waitFor(t, "503 from /ready", func() bool {
		code, _ := get(t, s, "/ready")
		return code == http.StatusServiceUnavailable
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if st := status.Convert(err); st.Code() != codes.Unavailable || st.Message() != "server is shutting down" {
		t.Errorf("the stream ended with %v", err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the server ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the server does not end")
	}
}

// holdUp opens a plaintext stream with a window of 0.
func holdUp(t *testing.T, s *Server) {
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
}
