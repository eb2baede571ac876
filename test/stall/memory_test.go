//go:build !race

package stall

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// The container of deploy/ has 1 GiB, of which nine tenths are GOMEMLIMIT.
const (
	container = 1 << 30
	goLimit   = container / 10 * 9
)

// secureServer is a server in a container, and the CA of its callers.
type secureServer struct {
	*server
	ca   *certs.Authority
	addr string // of the secure port
	peak atomic.Int64
}

// startSecure starts a server of a small mesh, by the command that one of run makes of
// the binary. The test fails, and the server ends, when it outgrows its container.
func startSecure(t *testing.T, run ...func(binary string) []string) *secureServer {
	t.Helper()
	work := t.TempDir()
	s := &secureServer{server: &server{t: t, dir: filepath.Join(work, "mesh")}, ca: certstest.NewIntermediate(t, certstest.NewRoot(t))}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		s.addService(i)
	}
	if _, err := store.SaveIntermediates(filepath.Join(work, "ca"), []store.Intermediate{{Cluster: "cluster1", Authority: s.ca}}, true); err != nil {
		t.Fatal(err)
	}
	addrs := harness.FreeAddrs(t, 3)
	s.addr, s.metrics = addrs[0], addrs[1]
	ctx, cancel := context.WithCancel(context.Background())
	command := []string{meshctl}
	for _, r := range run {
		command = r(command[0])
	}
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], "serve", "--config-dir", s.dir, "--ca-dir", filepath.Join(work, "ca", "cluster1"),
		"--state-dir", filepath.Join(work, "state"), "--cluster-id", "cluster1",
		"--grpc-addr", "", "--secure-grpc-addr", s.addr, "--monitoring-addr", s.metrics, "--http-addr", addrs[2], "--log-level", "error")...)
	cmd.Env = append(os.Environ(), fmt.Sprint("GOMEMLIMIT=", goLimit))
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for ctx.Err() == nil {
			if s.peak.Store(max(s.peak.Load(), s.memory())); s.peak.Load() > container {
				cancel()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		died := ctx.Err() != nil
		cancel()
		<-watched
		_ = cmd.Wait() // it was killed
		if died {
			t.Errorf("the server has outgrown its container: %d MiB", s.peak.Load()>>20)
		}
		t.Logf("resident: at most %d MiB", s.peak.Load()>>20)
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

// tls is how a service account connects.
func (s *secureServer) tls(account string) *tls.Config {
	s.t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		s.t.Fatal(err)
	}
	who := mesh.Caller{Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "apps", ServiceAccount: account}, Cluster: "cluster1"}
	leaf, err := s.ca.SignLeaf(key.Public(), who, time.Hour, time.Now(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	cert := tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
	for _, c := range s.ca.Chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	roots := x509.NewCertPool()
	for _, r := range s.ca.Roots {
		roots.AddCert(r)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "istiod.istio-system.svc", Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
}

func nodeOf(name string) *corev3.Node {
	return &corev3.Node{Id: fmt.Sprintf("sidecar~10.0.0.1~%s.apps~apps.svc.cluster.local", name)}
}

// served has a proxy of another identity connect and get its clusters.
func (s *secureServer) served(name string) {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:"+s.addr, grpc.WithTransportCredentials(credentials.NewTLS(s.tls("calm"))))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err == nil {
		err = stream.Send(&discoveryv3.DiscoveryRequest{Node: nodeOf(name), TypeUrl: xdswire.ClusterType})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil || len(resp.GetResources()) < 10 {
		s.t.Errorf("another identity is given %d clusters: %v", len(resp.GetResources()), err)
	}
}

// withstands has other proxies connect, one after the other, while an attack grows
// and once it grows no more. Size is how far it is.
func (s *secureServer) withstands(size *atomic.Int64) {
	s.t.Helper()
	last := int64(-1)
	for i, still := 0, 0; still < 3; i++ {
		s.served(fmt.Sprint("calm-", i))
		time.Sleep(time.Second)
		if still++; size.Load() != last {
			last, still = size.Load(), 0
		}
	}
}

// subscribe has one identity ask for names over many connections, and read no
// answer.
func (s *secureServer) subscribe(conns int, names func(conn int) []string) {
	s.t.Helper()
	config := s.tls("hostile")
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(s.t.Context())
	defer wg.Wait()
	defer cancel()
	var sent atomic.Int64
	for i := range conns {
		conn, err := grpc.NewClient("passthrough:"+s.addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			s.t.Fatal(err)
		}
		wg.Go(func() {
			defer func() { _ = conn.Close() }()
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
			if err != nil {
				return // refused
			}
			_ = stream.Send(&discoveryv3.DiscoveryRequest{Node: nodeOf(fmt.Sprint("h", i)), TypeUrl: xdswire.EndpointType, ResourceNames: names(i)})
			sent.Add(1)
			<-ctx.Done()
		})
	}
	s.withstands(&sent)
}

// manyNames are as many names as a stream may subscribe to.
func manyNames(set int) []string {
	names := make([]string, 100_000)
	for n := range names {
		names[n] = fmt.Sprintf("outbound|80||%07d-%02d.example", n, set)
	}
	return names
}

// TestNamesOfOneIdentity has each connection of an identity subscribe to names of
// its own.
func TestNamesOfOneIdentity(t *testing.T) {
	startSecure(t).subscribe(24, manyNames)
}

// TestAnswersOfOneIdentity has all connections of an identity subscribe to the same
// names, so that the answers are all that is more.
func TestAnswersOfOneIdentity(t *testing.T) {
	names := manyNames(0)
	startSecure(t).subscribe(300, func(int) []string { return names })
}

// hostile is a connection that speaks HTTP/2 frame by frame. It obeys flow
// control.
type hostile struct {
	conn net.Conn
	fr   *http2.Framer

	mu      sync.Mutex
	changed *sync.Cond
	window  map[uint32]int64 // of streams, and of the connection by 0
	opened  uint32
	err     error
}

// closed is the window of a stream that the server has reset.
const closed = -1 << 40

func (s *secureServer) hostile(config *tls.Config) *hostile {
	s.t.Helper()
	conn, err := (&tls.Dialer{Config: config}).DialContext(s.t.Context(), "tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	c := &hostile{conn: conn, fr: http2.NewFramer(conn, conn), window: map[uint32]int64{0: 65535}}
	c.changed = sync.NewCond(&c.mu)
	_, err = io.WriteString(conn, http2.ClientPreface)
	if err = errors.Join(err, c.fr.WriteSettings()); err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.read()
	}()
	s.t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return c
}

func (c *hostile) read() {
	for {
		f, err := c.fr.ReadFrame()
		c.mu.Lock()
		switch f := f.(type) {
		case *http2.WindowUpdateFrame:
			c.window[f.StreamID] += int64(f.Increment)
		case *http2.RSTStreamFrame:
			c.window[f.StreamID] = closed
		case *http2.GoAwayFrame:
			err = fmt.Errorf("GOAWAY %v %s", f.ErrCode, f.DebugData())
		}
		c.err = err
		c.changed.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// open opens a stream.
func (c *hostile) open(id uint32) error {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "test"},
		{Name: ":path", Value: discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	} {
		_ = enc.WriteField(f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.opened+2 != id && id != 1 && c.err == nil { // streams are opened in order
		c.changed.Wait()
	}
	c.opened, c.window[id] = id, 1<<20
	c.changed.Broadcast()
	return c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
}

// write writes data once the windows are open.
func (c *hostile) write(id uint32, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && c.window[id] > closed/2 && (c.window[0] < int64(len(data)) || c.window[id] < int64(len(data))) {
		c.changed.Wait()
	}
	if c.err != nil {
		return c.err
	}
	if c.window[id] < 0 {
		return errors.New("reset")
	}
	c.window[0] -= int64(len(data))
	c.window[id] -= int64(len(data))
	return c.fr.WriteData(id, false, data)
}

// TestUnfinishedRequestsOfOneIdentity has one identity send most of large
// requests, and stop.
func TestUnfinishedRequestsOfOneIdentity(t *testing.T) {
	s := startSecure(t)
	config := s.tls("hostile")
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // when the connections are closed
	var sent atomic.Int64
	for range 10 {
		c := s.hostile(config)
		for i := range uint32(100) {
			wg.Go(func() {
				err := c.open(2*i + 1)
				part := binary.BigEndian.AppendUint32([]byte{0}, 4<<20-1)
				for size := 0; err == nil && size < 4<<20-32<<10; size += len(part) {
					if err = c.write(2*i+1, part); err == nil {
						sent.Add(int64(len(part)))
					}
					part = make([]byte, 16<<10)
				}
			})
		}
	}
	s.withstands(&sent)
}
