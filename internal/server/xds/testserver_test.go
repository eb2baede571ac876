package xds

import (
	"context"
	"log/slog"
	"math"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshctl/meshctl/test/harness"
)

// testServer is a running hub with a server.
type testServer struct {
	t    testing.TB
	hub  *Hub
	reg  *prometheus.Registry
	mesh *testMesh
	addr string
	logs *harness.LogBuffer
	stop context.CancelFunc // of the hub
}

type serverOption func(*Config, *Access)

const patience = 2 * time.Minute

// newUnstartedHub returns a hub without goroutines: the test delivers mail and flushes
// sessions.
func newUnstartedHub() *Hub {
	h := NewHub(testConfig(prometheus.NewRegistry(), slog.New(slog.DiscardHandler)))
	h.queue.workers = math.MaxInt
	h.cfg.Limits.ClusterWait = time.Hour // a test ends before the end of a wait uses its sessions
	return h
}

func startServer(t testing.TB, w *testMesh, opts ...serverOption) *testServer {
	t.Helper()
	b := &testServer{t: t, reg: prometheus.NewRegistry(), mesh: w, logs: &harness.LogBuffer{}}
	var access Access
	cfg := testConfig(b.reg, slog.New(slog.NewTextHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelWarn})))
	for _, o := range opts {
		o(&cfg, &access)
	}
	b.hub = NewHub(cfg)
	if w != nil {
		b.hub.Update(w.take())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = l.Addr().String()
	srv := grpc.NewServer(b.hub.ServerOptions(nil)...)
	conns := b.hub.NewConns(access.Authenticate != nil)
	Register(srv, b.hub, access)
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	ran, served := make(chan error, 1), make(chan error, 1)
	go func() { ran <- b.hub.Run(ctx) }()
	go func() { served <- srv.Serve(conns.Listen(l)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("hub: %v", err)
		}
		srv.Stop()
		<-served
	})
	return b
}

// push passes the changes of the mesh to the hub and waits for their publication.
func (b *testServer) push() {
	b.t.Helper()
	s, c := b.mesh.take()
	b.hub.Update(s, c)
	b.eventually("publication", func() bool { return b.hub.Seq() == s.Seq })
}

func (b *testServer) dial(opts ...grpc.DialOption) *grpc.ClientConn {
	b.t.Helper()
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	conn, err := grpc.NewClient(b.addr, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	return conn
}

// metric returns a counter or gauge as /metrics shows it.
func (b *testServer) metric(name, typ string) float64 {
	b.t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if typ == "" || len(m.GetLabel()) == 1 && m.GetLabel()[0].GetValue() == typ {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	b.t.Fatalf("no metric %s of type %q", name, typ)
	return 0
}

// eventually waits for a condition that another goroutine makes true.
func (b *testServer) eventually(what string, f func() bool) {
	b.t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("did not come: %s", what)
		}
	}
}

func testConfig(reg prometheus.Registerer, log *slog.Logger) Config {
	return Config{
		Generator: testGenerator(), Metrics: NewMetrics(reg), Log: log,
		Now: func() time.Time { return time.Unix(1_700_000_000, 0) },
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
