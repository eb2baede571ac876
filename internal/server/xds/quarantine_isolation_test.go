package xds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// authenticateByUserAgent authenticates peers by the namespace and service account at
// the start of their user agent.
func authenticateByUserAgent(_ *Config, a *Access) {
	a.Authenticate = func(ctx context.Context) (mesh.Caller, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		who, _, _ := strings.Cut(strings.Join(md.Get("user-agent"), ""), " ")
		namespace, account, _ := strings.Cut(who, "/")
		return mesh.Caller{Identity: mesh.Identity{TrustDomain: "td", Namespace: namespace, ServiceAccount: account}}, nil
	}
}

// connectAs connects a proxy with a namespace, a service account and a version of
// Envoy.
func (b *testServer) connectAs(who string, v xdswire.Variant, name string) (*client, *grpc.ClientConn) {
	b.t.Helper()
	conn := b.dial(grpc.WithUserAgent(who))
	c := b.connectOn(conn, v, name)
	c.node.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
		Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40},
	}}
	go c.receive()
	return c, conn
}

// TestQuarantineIsPerProxy: Two service accounts of a namespace refuse resources and
// name them. Proxies of other namespaces get everything, while the two are connected
// and afterwards, also after a reconnection.
func TestQuarantineIsPerProxy(t *testing.T) {
	types := []struct{ typ, name, text string }{
		{"CDS", "PassthroughCluster", "Error adding/updating cluster(s) %s: no good"},
		{"EDS", "outbound|80||web.shop", "Unexpected EDS cluster (expecting %s): other"},
		{"LDS", "virtualOutbound", "Error adding/updating listener(s) %s: no good"},
		{"RDS", "http", "no good in route %s"},
	}
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newTestMesh()
		for _, x := range types {
			w.set(x.typ, "shared", x.name, x.name+":1").set(x.typ, "shared", "other", "other:1")
		}
		b := startServer(t, w, authenticateByUserAgent)
		subscribed := func(x struct{ typ, name, text string }) []string {
			if x.typ == "CDS" || x.typ == "LDS" {
				return nil
			}
			return []string{x.name, "other"}
		}
		var hostile []*client
		var conns []*grpc.ClientConn
		for i := range 2 {
			c, conn := b.connectAs(fmt.Sprintf("hostile/sa%d", i), v, fmt.Sprintf("h%d", i))
			hostile, conns = append(hostile, c), append(conns, conn)
		}
		accepted, _ := b.connectAs("shop/web", v, "accepted")
		refuse := func(version int) {
			t.Helper()
			for _, x := range types {
				for _, c := range hostile {
					if version == 1 {
						c.subscribe(x.typ, subscribed(x)...)
					}
					r := c.recv()
					for r.resources[x.name] != fmt.Sprintf("%s:%d", x.name, version) {
						c.ack(r) // endpoints that follow their clusters
						r = c.recv()
					}
					c.nack(r, fmt.Sprintf(x.text, x.name))
				}
			}
		}
		// all makes a proxy request everything.
		all := func(c *client, version int) {
			t.Helper()
			for _, x := range types {
				c.subscribe(x.typ, subscribed(x)...)
				r := c.recv()
				for r.typ != x.typ { // endpoints that follow their clusters
					c.ack(r)
					r = c.recv()
				}
				if got, want := r.resources[x.name], fmt.Sprintf("%s:%d", x.name, version); got != want || len(r.resources) != 2 {
					t.Errorf("%s: %s is given, want %s among it", x.typ, contents(r.resources), want)
				}
				c.ack(r)
			}
		}
		refuse(1)
		all(accepted, 1)
		for i := range 2 {
			fresh, _ := b.connectAs(fmt.Sprintf("apps/sa%d", i), v, fmt.Sprintf("fresh%d", i))
			all(fresh, 1)
		}
		for _, x := range types {
			b.mesh.set(x.typ, "shared", x.name, x.name+":2")
		}
		b.push()
		refuse(2)
		later, _ := b.connectAs("apps/sa0", v, "later")
		all(later, 2)
		for _, conn := range conns {
			_ = conn.Close()
		}
		last, _ := b.connectAs("apps/sa1", v, "last")
		all(last, 2)
		if v == xdswire.SotW { // it reports held versions
			again, _ := b.connectAs("shop/web", v, "again")
			again.first = false
			if err := again.sotw.Send(&discoveryv3.DiscoveryRequest{Node: again.node, TypeUrl: xdswire.ListenerType, VersionInfo: "1"}); err != nil {
				t.Fatal(err)
			}
			again.wantAck("LDS", "other=other:1 virtualOutbound=virtualOutbound:2")
		}
	})
}

// TestManyNACKs: Two identities refuse everything and name it.
func TestManyNACKs(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		const resources = 400
		w := newTestMesh()
		for i := range resources {
			name := fmt.Sprintf("c%03d", i)
			w.set("CDS", "shared", name, name+":1")
		}
		b := startServer(t, w, authenticateByUserAgent)
		for i := range 4 { // two streams of each identity
			c, _ := b.connectAs(fmt.Sprintf("hostile/sa%d", i%2), v, fmt.Sprintf("p%d", i))
			c.subscribe("CDS")
			r := c.recv()
			text := "Error adding/updating cluster(s) "
			for _, name := range slices.Backward(slices.Sorted(maps.Keys(r.resources))) {
				text += name + ": no, "
			}
			c.nack(r, text)
		}
		b.eventually("the refusals", func() bool { return len(b.hub.NACKs().Refused) == resources })
		good, _ := b.connectAs("apps/good", v, "good")
		good.subscribe("CDS")
		if n := len(good.recv().resources); n != resources {
			t.Errorf("an innocent proxy is given %d resources, want %d", n, resources)
		}
	})
}
