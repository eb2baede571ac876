package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a snapshot under construction. Its resources are services whose
// host is "<type>/<view>/<name>" and whose Name is the content.
type world struct {
	s       *snapshot.Snapshot
	changes *snapshot.Changes
}

func newWorld() *world {
	return &world{s: &snapshot.Snapshot{Mesh: &snapshot.Mesh{}}, changes: &snapshot.Changes{}}
}

// set gives a resource a content; the empty content removes it.
func (w *world) set(typ, view, name, content string) *world {
	key := typ + "/" + view + "/" + name
	var svc *snapshot.MeshService
	if content != "" {
		svc = &snapshot.MeshService{Host: name, Name: content}
	}
	next := *w.s
	next.Services = next.Services.With(map[string]*snapshot.MeshService{key: svc})
	w.s = &next
	changed := &w.changes.Services
	if typ == "EDS" {
		changed = &w.changes.Endpoints
	}
	if *changed == nil {
		*changed = make(map[string]struct{})
	}
	(*changed)[key] = struct{}{}
	return w
}

// view gives the proxies of a name another shared view.
func (w *world) view(proxy, view string) *world {
	next := *w.s
	next.Pods = next.Pods.With(map[string]*snapshot.Pod{proxy: {Node: view}})
	w.s = &next
	if w.changes.Pods == nil {
		w.changes.Pods = make(map[string]struct{})
	}
	w.changes.Pods[proxy] = struct{}{}
	return w
}

// take is what changed since the last take.
func (w *world) take() (*snapshot.Snapshot, *snapshot.Changes) {
	next := *w.s
	next.Seq++
	w.s = &next
	c := w.changes
	w.changes = &snapshot.Changes{}
	return w.s, c
}

// testView holds all resources of a type whose host names the view.
type testView struct{ typ, name string }

func (v testView) Type() string { return v.typ }
func (v testView) Reads() snapshot.Kinds {
	if v.typ == xdswire.EndpointType {
		return snapshot.EndpointFacts
	}
	return snapshot.ServiceFacts
}

func (v testView) prefix() string { return xdswire.ShortType(v.typ) + "/" + v.name + "/" }

func (v testView) Units(s *snapshot.Snapshot, yield func(string, xdsgen.Unit)) {
	for key, svc := range s.Services.All() {
		if strings.HasPrefix(key, v.prefix()) {
			yield(key, testUnit{v.typ, svc})
		}
	}
}

func (v testView) Touched(s *snapshot.Snapshot, c *snapshot.Changes, yield func(string, xdsgen.Unit)) {
	changed := c.Services
	if v.typ == xdswire.EndpointType {
		changed = c.Endpoints
	}
	for key := range changed {
		if !strings.HasPrefix(key, v.prefix()) {
			continue
		}
		if svc := s.Services.Get(key); svc != nil {
			yield(key, testUnit{v.typ, svc})
		} else {
			yield(key, nil)
		}
	}
}

type testUnit struct {
	typ string
	svc *snapshot.MeshService
}

func (u testUnit) Type() string { return u.typ }

func (u testUnit) Generate(e *xdswire.Encoder) ([]*xdswire.Resource, error) {
	switch u.svc.Name {
	case "broken":
		return nil, errors.New("broken on purpose")
	case "panic":
		panic("on purpose")
	}
	r, err := e.Resource(u.typ, u.svc.Host, wrapperspb.String(u.svc.Name))
	return []*xdswire.Resource{r}, err
}

// testGeneration gives every proxy the view "shared", or that of its pod, and
// a view of its own name.
func testGeneration() Generation { return generationOf() }

// generationOf is testGeneration for more types.
func generationOf(more ...string) Generation {
	return Generation{
		ParseNode: func(n *corev3.Node, maxMetadata int) (xdsgen.Node, error) {
			if strings.Contains(n.GetId(), "panic") {
				panic("on purpose")
			}
			return xdsgen.ParseNode(n, maxMetadata)
		},
		Assign: func(s *snapshot.Snapshot, n xdsgen.Node) xdsgen.Assignment {
			shared := "shared"
			if p := s.Pods.Get(n.ID.Name); p != nil {
				shared = p.Node
			}
			if shared == "panic" {
				panic("on purpose")
			}
			a := make(xdsgen.Assignment)
			for _, t := range append(xdswire.PushOrder[:4:4], more...) {
				a[t] = xdsgen.Views{Shared: testView{t, shared}, Own: testView{t, n.ID.Name}}
			}
			return a
		},
		AssignReads: func(n xdsgen.Node) (pod, namespace string) { return n.ID.Name, n.Namespace },
		AssignAll:   func(_ *snapshot.Snapshot, c *snapshot.Changes) bool { return c.Everywhere },
		Fallback: func(t, name string, e *xdswire.Encoder) (*xdswire.Resource, error) {
			return e.Resource(t, name, wrapperspb.String(name+":fallback"))
		},
	}
}

func testNode(name string) *corev3.Node {
	return &corev3.Node{Id: "sidecar~127.0.0.1~" + name + ".ns~ns.svc.cluster.local"}
}

func testConfig(reg prometheus.Registerer, log *slog.Logger) Config {
	return Config{
		Generation: testGeneration(), Metrics: NewMetrics(reg), Log: log,
		Now: func() time.Time { return time.Unix(1_700_000_000, 0) },
	}
}

// bench is a hub that runs and a server on it.
type bench struct {
	t     testing.TB
	hub   *Hub
	reg   *prometheus.Registry
	world *world
	addr  string
	logs  *logBuffer
	stop  context.CancelFunc // of the hub
}

type benchOption func(*Config, *Access)

const patience = 30 * time.Second

// drivenHub is a hub without goroutines: the test delivers, and flushes the
// sessions.
func drivenHub() *Hub {
	h := NewHub(testConfig(prometheus.NewRegistry(), slog.New(slog.DiscardHandler)))
	h.queue.workers = math.MaxInt
	return h
}

func start(t testing.TB, w *world, opts ...benchOption) *bench {
	t.Helper()
	b := &bench{t: t, reg: prometheus.NewRegistry(), world: w, logs: &logBuffer{}}
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

// push hands the changes of the world to the hub.
// and waits until it is published.
func (b *bench) push() {
	b.t.Helper()
	s, c := b.world.take()
	b.hub.Update(s, c)
	b.eventually("publication", func() bool { return b.hub.Seq() == s.Seq })
}

func (b *bench) dial(opts ...grpc.DialOption) *grpc.ClientConn {
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

// metric reads one counter or gauge as /metrics would show it.
func (b *bench) metric(name, typ string) float64 {
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

// eventually waits for a condition that another goroutine brings about.
func (b *bench) eventually(what string, f func() bool) {
	b.t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("did not come: %s", what)
		}
	}
}

func contents(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s=%s", k, m[k]))
	}
	return strings.Join(out, " ")
}
