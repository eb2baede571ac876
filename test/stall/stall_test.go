//go:build !race

// Package stall has half of a thousand proxies stop reading, and one identity attack
// the memory of a server.
package stall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// meshctl is the path of the program under test.
var meshctl string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &meshctl)) }

const (
	proxies  = 1000
	services = 1000
	patience = 2 * time.Minute
	// most is how much memory stalled proxies may cost together.
	most = 64 << 20
)

// server is a meshctl serve.
type server struct {
	t             *testing.T
	pid           int
	dir           string
	grpc, metrics string
}

func startServer(t *testing.T) *server {
	t.Helper()
	work := t.TempDir()
	s := &server{t: t, dir: filepath.Join(work, "mesh")}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range services {
		s.addService(i)
	}
	addrs := harness.FreeAddrs(t, 3)
	s.grpc, s.metrics = addrs[0], addrs[1]
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, meshctl, "serve", "--config-dir", s.dir, "--state-dir", filepath.Join(work, "state"),
		"--grpc-addr", s.grpc, "--secure-grpc-addr", "", "--monitoring-addr", s.metrics, "--http-addr", addrs[2],
		"--write-timeout", "30s", "--log-level", "error")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if log.Len() > 0 {
			t.Logf("log of the server:\n%s", log.String())
		}
	})
	s.eventually("ready", func() bool {
		code, _, err := s.get(addrs[2], "/ready")
		return err == nil && code == http.StatusOK
	})
	return s
}

// addService adds a Service to the mesh.
func (s *server) addService(i int) {
	s.t.Helper()
	name := filepath.Join(s.dir, fmt.Sprintf("service-%d.yaml", i))
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: svc-%d, namespace: ns}
spec:
  clusterIP: 10.96.%d.%d
  ports: [{name: http, port: 80}]
`, i, i/250, i%250+1)
	err := os.WriteFile(name+".tmp", []byte(text), 0o600)
	if err = errors.Join(err, os.Rename(name+".tmp", name)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) eventually(what string, is func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("did not come: %s", what)
		}
	}
}

// get reads a page of the server.
func (s *server) get(addr, path string) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return 0, "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// metric reads a metric without labels.
func (s *server) metric(name string) float64 {
	s.t.Helper()
	_, body, err := s.get(s.metrics, "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(body, "\n"+name+" ")
	var v float64
	if _, err := fmt.Sscan(rest, &v); err != nil {
		s.t.Fatalf("metric %s: %v", name, err)
	}
	return v
}

// memory is what the process has resident, in bytes.
func (s *server) memory() int64 {
	s.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		s.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		s.t.Fatal(err)
	}
	return kib << 10
}

// dialDeaf connects with a window of a few packets of the loopback.
func dialDeaf(stop <-chan struct{}) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return harness.DialStalling(ctx, net.Dialer{}, addr, 192<<10, stop)
	})
}

// rawCodec passes requests encoded and hands over responses as bytes.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	b, err := proto.Marshal(m)
	return mem.BufferSlice{mem.SliceBuffer(b)}, err
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("no bytes but %T", v)
	}
	*b = data.Materialize()
	return nil
}

func (rawCodec) Name() string { return "proto" }

// nonce returns the nonce of an encoded DiscoveryResponse.
func nonce(b []byte) string {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		b = b[max(n, 0):]
		if num == 5 && typ == protowire.BytesType {
			s, _ := protowire.ConsumeString(b)
			return s
		}
		n = protowire.ConsumeFieldValue(num, typ, b)
		if n < 0 {
			return ""
		}
		b = b[n:]
	}
	return ""
}

// proxy asks for all clusters, accepts what comes and hands it to seen, until
// its connection ends.
func proxy(ctx context.Context, conn *grpc.ClientConn, i int, seen func([]byte)) error {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName)
	if err != nil {
		return err
	}
	request := &discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: fmt.Sprintf("sidecar~10.0.0.1~p%d.apps~apps.svc.cluster.local", i)}, TypeUrl: xdswire.ClusterType,
	}
	for {
		if err := stream.SendMsg(request); err != nil {
			return err
		}
		var b []byte
		if err := stream.RecvMsg(&b); err != nil {
			return err
		}
		seen(b)
		request = &discoveryv3.DiscoveryRequest{TypeUrl: xdswire.ClusterType, ResponseNonce: nonce(b)}
	}
}

// latest counts the proxies that have seen the newest service.
type latest struct {
	mu     sync.Mutex
	marker []byte
	seen   map[int]bool
}

func (l *latest) expect(service int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marker, l.seen = fmt.Appendf(nil, "svc-%d.ns.svc", service), make(map[int]bool)
}

func (l *latest) note(proxy int, b []byte) {
	l.mu.Lock()
	marker := l.marker
	l.mu.Unlock()
	if !bytes.Contains(b, marker) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Equal(marker, l.marker) {
		l.seen[proxy] = true
	}
}

func (l *latest) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

// TestHalfOfTheProxiesStopReading: the others reach each newest state, the
// stalled ones cost little memory, and their sockets are closed in time.
func TestHalfOfTheProxiesStopReading(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("it reads memory from /proc")
	}
	s := startServer(t)
	deaf := make(chan struct{})
	var news latest
	news.expect(services - 1)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	for i := range proxies {
		opts := []grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.ForceCodecV2(rawCodec{})),
		}
		if i%2 == 1 {
			opts = append(opts, dialDeaf(deaf))
		}
		conn, err := grpc.NewClient(s.grpc, opts...)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer func() { _ = conn.Close() }()
			err := proxy(ctx, conn, i, func(b []byte) { news.note(i, b) })
			if ctx.Err() == nil && i%2 == 0 {
				t.Errorf("proxy %d reads and lost its stream: %v", i, err)
			}
		})
	}
	next := services
	change := func(readers int) {
		t.Helper()
		news.expect(next)
		s.addService(next)
		s.eventually(fmt.Sprintf("service %d at %d proxies", next, readers), func() bool { return news.count() >= readers })
		next++
	}
	s.eventually("the first configuration", func() bool { return news.count() == proxies })
	for range 10 { // so that memory is that of a server at work
		change(proxies)
	}
	before := s.memory()

	close(deaf)
	var peak int64
	for range 10 {
		change(proxies / 2)
		peak = max(peak, s.memory())
	}
	if n := s.metric("meshctl_xds_streams"); n != proxies {
		t.Logf("%v streams were left when the last change had arrived", n)
	}
	t.Logf("resident: %d MiB before, at most %d MiB with half of the proxies stalled", before>>20, peak>>20)
	if peak-before > most {
		t.Errorf("stalled proxies cost %d MiB, want at most %d", (peak-before)>>20, most>>20)
	}
	s.eventually("the end of the stalled sockets", func() bool {
		return s.metric("meshctl_xds_streams") == proxies/2 && s.metric("meshctl_xds_write_timeouts_total") == proxies/2
	})
	change(proxies / 2)
}
