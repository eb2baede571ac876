package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

func TestRefusedStreams(t *testing.T) {
	unauthenticated := func(_ *Config, a *Access) {
		a.Authenticate = func(context.Context) (mesh.Caller, error) { return mesh.Caller{}, errors.New("no credentials") }
	}
	forbidden := func(_ *Config, a *Access) {
		a.CheckNode = func(mesh.Caller, proxy.Node) error { return errors.New("not your node") }
	}
	starting := func(c *Config, _ *Access) { c.Ready = func() bool { return false } }
	tests := []struct {
		name   string
		world  *testMesh
		node   *corev3.Node
		option serverOption
		code   codes.Code
		text   string
	}{
		{"no snapshot", nil, testNode("p"), nil, codes.Unavailable, "server is not ready to serve discovery information"},
		{"not ready", small(), testNode("p"), starting, codes.Unavailable, "server is not ready to serve discovery information"},
		{"no node", small(), nil, nil, codes.InvalidArgument, "missing node information"},
		{"no node id", small(), &corev3.Node{}, nil, codes.InvalidArgument, "missing node information"},
		{"bad node id", small(), &corev3.Node{Id: "x"}, nil, codes.InvalidArgument, "node id"},
		{"unauthenticated", small(), testNode("p"), unauthenticated, codes.Unauthenticated, "request authenticate failure"},
		{"other node", small(), testNode("p"), forbidden, codes.PermissionDenied, "not your node"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			both(t, func(t *testing.T, v xdswire.Variant) {
				w := tt.world
				if w != nil {
					w = small()
				}
				var opts []serverOption
				if tt.option != nil {
					opts = append(opts, tt.option)
				}
				b := startServer(t, w, opts...)
				c := b.connect(v, "p")
				c.node = tt.node
				c.subscribe("CDS")
				if s := c.status(); s.Code() != tt.code || !strings.Contains(s.Message(), tt.text) {
					t.Errorf("got %v, want %v %q", s, tt.code, tt.text)
				}
				if n := len(b.hub.Proxies()); n != 0 {
					t.Errorf("%d proxies are registered", n)
				}
			})
		})
	}
}

func TestCallerReachesTheNodeCheck(t *testing.T) {
	who := mesh.Caller{Identity: mesh.Identity{TrustDomain: "td", Namespace: "ns", ServiceAccount: "sa"}, Cluster: "c1"}
	b := startServer(t, small(), func(_ *Config, a *Access) {
		a.Authenticate = func(context.Context) (mesh.Caller, error) { return who, nil }
		a.CheckNode = func(c mesh.Caller, n proxy.Node) error {
			if c != who || n.ID.Name != "p" {
				return fmt.Errorf("got %v %v", c, n)
			}
			return nil
		}
	})
	c := b.connect(xdswire.SotW, "p")
	c.subscribe("CDS")
	c.wantAck("CDS", "a=a:1 b=b:1")
	if p := b.hub.Proxies(); len(p) != 1 || p[0].Caller != who || p[0].ID != "p.ns-1" {
		t.Errorf("proxies %+v", p)
	}
}

func TestHealthBeforeTheFirstRequest(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		node := c.node
		c.node = nil
		c.subscribe(xdswire.HealthType)
		c.node, c.first = node, true
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
	})
}

func TestNoFirstRequest(t *testing.T) {
	b := startServer(t, small(), func(c *Config, _ *Access) { c.Limits.FirstRequest = time.Millisecond })
	if s := b.connect(xdswire.SotW, "p").status(); s.Code() != codes.DeadlineExceeded {
		t.Errorf("got %v", s)
	}
}

func TestTooManyNames(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small(), func(c *Config, _ *Access) { c.Limits.Names, c.Limits.NameBytes = 3, 100 })
		c := b.connect(v, "p")
		c.subscribe("EDS", "a", "b", "c")
		c.ack(c.recv())
		c.subscribe("EDS", "a", "b", "c", "d")
		if s := c.status(); s.Code() != codes.ResourceExhausted {
			t.Errorf("four names: got %v", s)
		}
		c = b.connect(v, "p")
		c.subscribe("EDS", strings.Repeat("x", 101))
		if s := c.status(); s.Code() != codes.ResourceExhausted {
			t.Errorf("a long name: got %v", s)
		}
	})
}

func TestLargeRequest(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.SotW, "p")
	// The send itself may fail if the server rejects the stream quickly.
	_ = c.sotw.Send(&discoveryv3.DiscoveryRequest{Node: c.node, ResourceNames: []string{strings.Repeat("x", 4<<20)}})
	if s := c.status(); s.Code() != codes.ResourceExhausted {
		t.Errorf("got %v", s)
	}
}

func TestPanicEndsOneStream(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		good := b.connect(v, "p")
		good.subscribe("CDS")
		good.wantAck("CDS", "a=a:1 b=b:1")
		bad := b.connect(v, "panic")
		bad.subscribe("CDS")
		if s := bad.status(); s.Code() != codes.Internal {
			t.Errorf("got %v, want Internal", s)
		}
		good.quiet()
		if n := b.metric("meshctl_xds_panics_total", ""); n != 1 {
			t.Errorf("%v panics counted, want 1", n)
		}
	})
}

func TestPanicInAssignEndsOneStream(t *testing.T) {
	b := startServer(t, small().view("q", "panic"))
	good := b.connect(xdswire.SotW, "p")
	good.subscribe("CDS")
	good.wantAck("CDS", "a=a:1 b=b:1")
	bad := b.connect(xdswire.SotW, "q")
	bad.subscribe("CDS")
	if s := bad.status(); s.Code() != codes.Internal {
		t.Errorf("got %v, want Internal", s)
	}
	good.quiet()
}

func TestFailedGenerationKeepsLastGood(t *testing.T) {
	for _, how := range []string{"broken", "panic"} {
		t.Run(how, func(t *testing.T) {
			b := startServer(t, small())
			c := b.connect(xdswire.SotW, "p")
			c.subscribe("CDS")
			c.wantAck("CDS", "a=a:1 b=b:1")
			b.mesh.set("CDS", "shared", "a", how).set("CDS", "shared", "b", "b:2")
			b.push()
			c.wantAck("CDS", "a=a:1 b=b:2")
			if n := b.metric("meshctl_xds_generation_failures_total", ""); n != 1 {
				t.Errorf("%v failures counted, want 1", n)
			}
			b.mesh.set("CDS", "shared", "a", "a:3")
			b.push()
			c.wantAck("CDS", "a=a:3 b=b:2")
		})
	}
}

func TestHubEndsStreams(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("CDS")
	c.wantAck("CDS", "a=a:1 b=b:1")
	b.stop()
	if s := c.status(); s.Code() != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", s)
	}
}

func TestServerNotReady(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, nil)
		b.mesh = small()
		c := b.connect(v, "early")
		c.subscribe("CDS")
		if s := c.status(); s.Code() != codes.Unavailable {
			t.Errorf("got %v, want Unavailable", s)
		}
		b.push()
		c = b.connect(v, "later")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
	})
}

// TestDisconnectReason: the log states how a proxy disconnected.
func TestDisconnectReason(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		logs := &harness.LogBuffer{}
		b := startServer(t, small(), func(c *Config, _ *Access) {
			c.Log = slog.New(slog.NewTextHandler(logs, nil))
		})
		for reason, end := range map[string]func(*client, net.Conn){
			"the proxy ended the stream": func(c *client, _ net.Conn) { c.cancel() },
			"the connection was closed":  func(_ *client, conn net.Conn) { conn.Close() },
		} {
			var conn net.Conn
			c := b.connectOn(b.dial(grpc.WithContextDialer(func(ctx context.Context, addr string) (_ net.Conn, err error) {
				conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr)
				return conn, err
			})), v, "p")
			go c.receive()
			c.subscribe("CDS")
			c.wantAck("CDS", "a=a:1 b=b:1")
			end(c, conn)
			b.eventually(reason, func() bool {
				return strings.Contains(logs.String(), `reason="`+reason+`"`)
			})
		}
	})
}
