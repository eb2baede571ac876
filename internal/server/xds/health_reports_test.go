package xds

import (
	"context"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// healthLog is a Health that records its calls.
type healthLog chan string

func (h healthLog) Report(stream string, who mesh.Caller, n proxy.Node, problem string) {
	h <- strings.Join([]string{stream, who.Identity.ServiceAccount, n.ID.Name, problem}, " ")
}

func (h healthLog) Gone(stream string) { h <- stream + " gone" }

// TestHealth: Reports of health are passed on with the caller, and so is the end of the
// stream. They get no answer and do not disturb the stream.
func TestHealth(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		told := make(healthLog, 10)
		b := startServer(t, small(), func(_ *Config, a *Access) {
			a.Health = told
			a.Authenticate = func(context.Context) (mesh.Caller, error) {
				return mesh.Caller{Identity: mesh.Identity{TrustDomain: "td", Namespace: "ns", ServiceAccount: "vm"}}, nil
			}
		})
		want := func(want string) {
			t.Helper()
			if got := <-told; got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		}
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		c.request(xdswire.HealthType, "", nil, nil, "")
		want("p.ns-1 vm p ")
		c.request(xdswire.HealthType, "", nil, nil, "connection refused")
		want("p.ns-1 vm p connection refused")
		c.request(xdswire.HealthType, "", nil, nil, strings.Repeat("x", 2000))
		want("p.ns-1 vm p " + strings.Repeat("x", 1024) + "…")
		c.quiet()
		c.cancel()
		want("p.ns-1 gone")
	})
}

// TestHealthWithoutAuthentication: Reports without an authenticated caller are ignored.
func TestHealthWithoutAuthentication(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		c.request(xdswire.HealthType, "", nil, nil, "down")
		c.quiet()
	})
}

// TestHealthAfterStreamEnd: A report received while the stream ends is ignored, because no
// end would follow it.
func TestHealthAfterStreamEnd(t *testing.T) {
	t.Parallel()
	told := make(healthLog, 10)
	s := &service{access: Access{Health: told}}
	sess := &session{sub: &subscriber{id: "p.ns-1"}}
	ended := s.reportHealth(sess, mesh.Caller{})
	sess.health("down")
	ended()
	sess.health("")
	close(told)
	var got []string
	for line := range told {
		got = append(got, line)
	}
	if len(got) != 2 || got[1] != "p.ns-1 gone" {
		t.Errorf("told %q", got)
	}
}
