package xds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	typedv3 "github.com/cncf/xds/go/xds/type/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	rbachttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// named authenticates peers as the service account that their user agent
// begins with.
func named(_ *Config, a *Access) {
	a.Authenticate = func(ctx context.Context) (mesh.Caller, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		who, _, _ := strings.Cut(strings.Join(md.Get("user-agent"), ""), " ")
		return mesh.Caller{Identity: mesh.Identity{TrustDomain: "td", Namespace: "ns", ServiceAccount: who}}, nil
	}
}

// envoy connects a proxy of a service account that says to run a version.
func (b *bench) envoy(v xdswire.Variant, name, who string, minor uint32) *client {
	b.t.Helper()
	c := b.connectOn(b.dial(grpc.WithUserAgent(who)), v, name)
	if minor > 0 {
		c.node.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: minor},
		}}
	}
	go c.receive()
	return c
}

// envoys are proxies of identities sa0, sa1 … with one version of Envoy that
// hold the clusters.
func (b *bench) envoys(v xdswire.Variant, n int, clusters string) []*client {
	b.t.Helper()
	var out []*client
	for i := range n {
		c := b.envoy(v, fmt.Sprintf("p%d", i), fmt.Sprintf("sa%d", i), 40)
		c.subscribe("CDS")
		c.wantAck("CDS", clusters)
		out = append(out, c)
	}
	return out
}

// refuse has a proxy refuse its next response for one resource.
func (c *client) refuse(name string) {
	c.t.Helper()
	r := c.recv()
	if _, ok := r.resources[name]; !ok {
		c.t.Fatalf("got %s {%s} without %s", r.typ, contents(r.resources), name)
	}
	c.nack(r, "Error adding/updating cluster(s) "+name+": no good")
}

// claim is the first request of a proxy of the state of the world that accepted
// a version before.
func (c *client) claim(typ, version string) {
	c.t.Helper()
	c.first = false
	err := c.sotw.Send(&discoveryv3.DiscoveryRequest{Node: c.node, TypeUrl: urlOf(typ), VersionInfo: version})
	if err != nil {
		c.t.Fatal(err)
	}
}

// held waits until so many resources are held back.
func (b *bench) held(n int) []HeldBack {
	b.t.Helper()
	b.eventually(fmt.Sprintf("%d held back", n), func() bool { return len(b.hub.NACKs().HeldBack) == n })
	return b.hub.NACKs().HeldBack
}

// judged waits until the hub has judged what the clients reported.
func (b *bench) judged(clients ...*client) {
	b.t.Helper()
	for _, c := range clients {
		c.quiet() // its NACK was handled
	}
	b.push()
}

// either is what a proxy is sent: the full list, or the change.
func either(v xdswire.Variant, full, change string) string {
	if v == xdswire.SotW {
		return full
	}
	return change
}

func TestHeldBack(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small(), named)
		c := b.envoys(v, 3, "a=a:1 b=b:1")
		b.world.set("CDS", "shared", "a", "a:bad")
		b.push()
		accepted := c[2].wantAck("CDS", either(v, "a=a:bad b=b:1", "a=a:bad")) // before it is held back
		c[0].refuse("a")
		c[1].refuse("a")
		h := b.held(1)[0]
		if h.Type != "CDS" || h.Resource != "a" || h.Envoy != "1.40.0" || !strings.Contains(h.Error, "no good") || h.Since.IsZero() || h.View == "" ||
			h.Version == "" || h.Served == "" || h.Served == h.Version || h.Streams != 0 ||
			!slices.Equal(slices.Sorted(slices.Values(h.RefusedBy)), []string{"spiffe://td/ns/ns/sa/sa0", "spiffe://td/ns/ns/sa/sa1"}) {
			t.Errorf("held back %+v", h)
		}
		if n := b.metric("meshctl_xds_held_back", "CDS"); n != 1 {
			t.Errorf("metric %v", n)
		}

		fresh := b.envoy(v, "fresh", "sa3", 40)
		fresh.subscribe("CDS")
		fresh.wantAck("CDS", "a=a:1 b=b:1")
		other := b.envoy(v, "other", "sa3", 39)
		other.subscribe("CDS")
		other.wantAck("CDS", "a=a:bad b=b:1")
		if h := b.held(1)[0]; h.Streams != 1 {
			t.Errorf("held back from %d streams, want 1", h.Streams)
		}
		for _, c := range append(c, fresh, other) {
			c.quiet() // who refused has what was good, who accepted keeps it
		}

		// Who accepted the bytes says so when it comes again.
		c[2].cancel()
		again := b.envoy(v, "p2", "sa2", 40)
		if v == xdswire.Delta {
			again.reconnect("CDS", map[string]string{"a": accepted.versions["a"], "b": "other"})
			again.wantAck("CDS", "b=b:1")
		} else {
			again.claim("CDS", accepted.version)
			again.wantAck("CDS", "a=a:bad b=b:1")
		}

		b.world.set("CDS", "shared", "b", "b:2")
		b.push()
		c[0].wantAck("CDS", either(v, "a=a:1 b=b:2", "b=b:2"))
		fresh.wantAck("CDS", either(v, "a=a:1 b=b:2", "b=b:2"))
		again.wantAck("CDS", either(v, "a=a:bad b=b:2", "b=b:2"))
		c[1].wantAck("CDS", either(v, "a=a:1 b=b:2", "b=b:2"))

		b.world.set("CDS", "shared", "a", "a:3")
		b.push()
		for _, c := range []*client{c[0], c[1], fresh, again} {
			c.wantAck("CDS", either(v, "a=a:3 b=b:2", "a=a:3"))
		}
		b.held(0)
		if n := b.metric("meshctl_xds_held_back", "CDS"); n != 0 {
			t.Errorf("metric %v", n)
		}
	})
}

// TestHeldBackFromTheFirst holds back what never was good.
func TestHeldBackFromTheFirst(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small(), named)
		c := b.envoys(v, 2, "a=a:1 b=b:1")
		b.world.set("CDS", "shared", "c", "c:bad").set("RDS", "shared", "r", "r:bad")
		b.push()
		for _, c := range c {
			c.refuse("c")
			c.subscribe("RDS", "r")
			r := c.want("RDS", "r=r:bad")
			c.nack(r, "x in route r")
		}
		for _, h := range b.held(2) {
			if h.Served != "" {
				t.Errorf("served instead: %+v", h)
			}
		}
		fresh := b.envoy(v, "fresh", "sa3", 40)
		fresh.subscribe("CDS")
		fresh.wantAck("CDS", "a=a:1 b=b:1")
		fresh.subscribe("RDS", "r") // is answered: Envoy waits for it
		fresh.wantAck("RDS", "r=r:fallback")
		b.world.set("CDS", "shared", "c", "").set("RDS", "shared", "r", "r:2")
		b.push()
		fresh.wantAck("RDS", "r=r:2")
		fresh.quiet()
		b.held(0)
	})
}

// TestNotHeldBack has proxies refuse a resource in ways that must cost nobody
// else anything, most as hostile ones would try.
func TestNotHeldBack(t *testing.T) {
	const plain = "x"
	for _, tt := range []struct {
		name         string
		first, again string // what the resource holds, and then is refused
		who          [2]string
		minor        [2]uint32
		plaintext    bool
	}{
		{"one identity with two streams", plain, "y", [2]string{"sa0", "sa0"}, [2]uint32{40, 40}, false},
		{"two versions of Envoy", plain, "y", [2]string{"sa0", "sa1"}, [2]uint32{39, 40}, false},
		{"lies about the version", plain, "y", [2]string{"sa0", "sa1"}, [2]uint32{41, 41}, false},
		{"versions not said", plain, "y", [2]string{"sa0", "sa1"}, [2]uint32{}, false},
		{"nobody proved who it is", plain, "y", [2]string{"sa0", "sa1"}, [2]uint32{40, 40}, true},
		{"a listener with RBAC", plain, "envoy.extensions.filters.http.rbac.v3.RBAC", [2]string{"sa0", "sa1"}, [2]uint32{40, 40}, false},
		{"a listener that had RBAC", "envoy.extensions.filters.network.rbac.v3.RBAC", "y", [2]string{"sa0", "sa1"}, [2]uint32{40, 40}, false},
		{"a cluster with TLS", plain, "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", [2]string{"sa0", "sa1"}, [2]uint32{40, 40}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			both(t, func(t *testing.T, v xdswire.Variant) {
				access := named
				if tt.plaintext {
					access = func(*Config, *Access) {}
				}
				b := start(t, newWorld().set("CDS", "shared", "a", "a:"+tt.first), access)
				var hostile []*client
				for i := range 2 {
					c := b.envoy(v, fmt.Sprintf("p%d", i), tt.who[i], tt.minor[i])
					c.subscribe("CDS")
					c.wantAck("CDS", "a=a:"+tt.first)
					hostile = append(hostile, c)
				}
				b.world.set("CDS", "shared", "a", "a:"+tt.again)
				b.push()
				for _, c := range hostile {
					c.refuse("a")
				}
				b.judged(hostile...)
				for i := range 2 { // and those that lost their good version do not come to it either
					fresh := b.envoy(v, fmt.Sprintf("fresh%d", i), fmt.Sprintf("sa%d", 7+i), 40)
					fresh.subscribe("CDS")
					fresh.wantAck("CDS", "a=a:"+tt.again)
				}
				page := b.hub.NACKs()
				if len(page.Refused) != 1 || len(page.Refused[0].Streams) != 2 {
					t.Errorf("withheld from who refused it: %+v", page.Refused)
				}
				for _, h := range page.HeldBack {
					if h.Envoy != "1.41.0" || h.Streams != 0 {
						t.Errorf("held back: %+v", h)
					}
				}
			})
		})
	}
}

// TestSecretsAreNotHeldBack has two identities refuse a secret.
func TestSecretsAreNotHeldBack(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, newWorld().set("SDS", "shared", "s", "s:1"), named, func(c *Config, _ *Access) {
			c.Generation = generationOf(xdswire.SecretType)
		})
		var hostile []*client
		for i := range 2 {
			c := b.envoy(v, fmt.Sprintf("p%d", i), fmt.Sprintf("sa%d", i), 40)
			c.subscribe("SDS", "s")
			c.refuse("s")
			hostile = append(hostile, c)
		}
		b.judged(hostile...)
		fresh := b.envoy(v, "fresh", "sa3", 40)
		fresh.subscribe("SDS", "s")
		fresh.wantAck("SDS", "s=s:1")
		b.held(0)
	})
}

// TestHeldBackInOneView has a resource of the same name and bytes in another
// view, and proxies that hold an older one of that.
func TestHeldBackInOneView(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := small().set("CDS", "other", "a", "a:private")
		for _, name := range []string{"p0", "p1", "p2"} {
			w.view(name, "other")
		}
		b := start(t, w, named)
		c := b.envoys(v, 3, "a=a:private")
		b.world.set("CDS", "shared", "a", "a:bad").set("CDS", "other", "a", "a:bad")
		b.world.view("p0", "shared").view("p1", "shared")
		b.push()
		c[0].refuse("a")
		c[1].refuse("a")
		c[2].wantAck("CDS", "a=a:bad")
		if h := b.held(1)[0]; h.Served != "" {
			t.Errorf("what is private to another view is served: %+v", h)
		}
		fresh := b.envoy(v, "fresh", "sa4", 40)
		fresh.subscribe("CDS")
		fresh.wantAck("CDS", "b=b:1")
		b.world.view("there", "other")
		b.push()
		there := b.envoy(v, "there", "sa5", 40)
		there.subscribe("CDS")
		there.wantAck("CDS", "a=a:bad")
		// Who had it keeps it, and cannot pass it on by refusing again.
		for _, c := range c[:2] {
			c.wantAck("CDS", either(v, "a=a:private b=b:1", "b=b:1"))
		}
		b.world.set("CDS", "shared", "a", "a:worse")
		b.push()
		for _, c := range c[:2] {
			c.refuse("a")
		}
		b.eventually("the next", func() bool {
			h := b.hub.NACKs().HeldBack
			return len(h) == 1 && h[0].Served == ""
		})
		late := b.envoy(v, "late", "sa6", 40)
		late.subscribe("CDS")
		late.wantAck("CDS", "b=b:1")
	})
}

// TestHeldBackGivesTheNewestGood has two proxies refuse that accepted
// different versions before, and others that know of a newer one.
func TestHeldBackGivesTheNewestGood(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small(), named)
		c := b.envoys(v, 2, "a=a:1 b=b:1")
		b.world.set("CDS", "shared", "a", "a:2")
		b.push()
		c[0].refuse("a")
		c[1].wantAck("CDS", either(v, "a=a:2 b=b:1", "a=a:2"))
		c[0].quiet()
		b.world.set("CDS", "shared", "a", "a:3")
		b.push()
		c[0].refuse("a")
		c[1].refuse("a")
		b.held(1)
		fresh := b.envoy(v, "fresh", "sa4", 40)
		fresh.subscribe("CDS")
		fresh.wantAck("CDS", "a=a:2 b=b:1")
		c[0].quiet() // it keeps what it has
	})
}

// TestHeldBackFromWhoHasAnOlderOne has new proxies refuse, which have nothing
// to fall back to. A slow one still has what was good: it keeps it, and
// others are given it.
func TestHeldBackFromWhoHasAnOlderOne(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small(), named)
		slow := b.envoys(v, 1, "a=a:1 b=b:1")[0]
		b.world.set("CDS", "shared", "b", "b:2")
		b.push()
		late := slow.want("CDS", either(v, "a=a:1 b=b:2", "b=b:2"))
		b.world.set("CDS", "shared", "a", "a:bad")
		b.push()
		var c []*client
		for i := range 2 {
			p := b.envoy(v, fmt.Sprintf("q%d", i), fmt.Sprintf("sa%d", 3+i), 40)
			p.subscribe("CDS")
			p.refuse("a")
			p.wantAck("CDS", "b=b:2") // what may not have been taken
			c = append(c, p)
		}
		if h := b.held(1)[0]; h.Served != "" {
			t.Errorf("served instead: %+v", h)
		}
		slow.ack(late)
		slow.quiet()
		for _, p := range c { // they have nothing, so they are given it too
			p.wantAck("CDS", either(v, "a=a:1 b=b:2", "a=a:1"))
		}
		if h := b.held(1)[0]; h.Served == "" {
			t.Errorf("nothing is served instead: %+v", h)
		}
	})
}

// TestHeldBackAndRefusedToo has a proxy refuse what it is given in place.
func TestHeldBackAndRefusedToo(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small(), named)
		c := b.envoys(v, 2, "a=a:1 b=b:1")
		b.world.set("CDS", "shared", "a", "a:bad")
		b.push()
		c[0].refuse("a")
		c[1].refuse("a")
		b.held(1)
		fresh := b.envoy(v, "fresh", "sa3", 40)
		fresh.subscribe("CDS")
		fresh.refuse("a")
		fresh.wantAck("CDS", "b=b:1")
		fresh.quiet()
		b.world.set("CDS", "shared", "b", "b:2")
		b.push()
		fresh.wantAck("CDS", "b=b:2")
		b.world.set("CDS", "shared", "a", "a:3")
		b.push()
		fresh.wantAck("CDS", either(v, "a=a:3 b=b:2", "a=a:3"))
	})
}

// TestHeldBackOutlivesItsStreams restarts all proxies of a view.
func TestHeldBackOutlivesItsStreams(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		var now atomic.Int64
		b := start(t, small(), named, func(c *Config, _ *Access) {
			c.Now = func() time.Time { return time.Unix(1_700_000_000+now.Load(), 0) }
		})
		c := b.envoys(v, 2, "a=a:1 b=b:1")
		b.world.set("CDS", "shared", "a", "a:bad")
		b.push()
		c[0].refuse("a")
		c[1].refuse("a")
		b.held(1)
		gone := func(c ...*client) {
			t.Helper()
			for _, c := range c {
				c.cancel()
			}
			b.eventually("end of the streams", func() bool { return len(b.hub.Proxies()) == 0 })
			b.push()
		}
		comes := func(want string) *client {
			t.Helper()
			c := b.envoy(v, "fresh", "sa3", 40)
			c.subscribe("CDS")
			c.wantAck("CDS", want)
			return c
		}
		gone(c...)
		now.Add(int64((keepHeld - time.Second) / time.Second))
		b.push()
		gone(comes("a=a:1 b=b:1"))
		now.Add(int64((keepHeld - time.Second) / time.Second))
		b.push()
		b.world.set("CDS", "shared", "b", "b:2")
		b.push()
		gone(comes("a=a:1 b=b:2"))
		now.Add(int64(keepHeld / time.Second))
		b.push()
		b.held(0)
		if n := b.metric("meshctl_xds_views", ""); n != 0 {
			t.Errorf("%v views are left", n)
		}
		comes("a=a:bad b=b:2")
	})
}

// TestFloodOfRefusals has two identities refuse more than counts.
func TestFloodOfRefusals(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		const resources = 3 * maxReports
		w := newWorld()
		for i := range resources {
			name := fmt.Sprintf("c%03d", i)
			w.set("CDS", "shared", name, name+":1")
		}
		b := start(t, w, named)
		var hostile []*client
		for i := range 4 { // two streams of each
			c := b.envoy(v, fmt.Sprintf("p%d", i), fmt.Sprintf("sa%d", i%2), 40)
			c.subscribe("CDS")
			r := c.recv()
			text := "Error adding/updating cluster(s) "
			for _, name := range slices.Backward(slices.Sorted(maps.Keys(r.resources))) {
				text += name + ": no, "
			}
			c.nack(r, text)
			hostile = append(hostile, c)
		}
		b.judged(hostile...)
		b.held(maxReports)
		good := b.envoy(v, "good", "sa5", 40)
		good.subscribe("CDS")
		if n := len(good.recv().resources); n != resources-maxReports {
			t.Errorf("an innocent proxy is given %d resources, want %d", n, resources-maxReports)
		}
		// What they spent comes back when the resources change.
		for i := range resources {
			name := fmt.Sprintf("c%03d", i)
			b.world.set("CDS", "shared", name, name+":2")
		}
		b.push()
		b.held(0)
	})
}

// TestReportsAreBounded gives a hub that is busy more than it keeps.
func TestReportsAreBounded(t *testing.T) {
	var m mail
	identity := func(i int) mesh.Identity { return mesh.Identity{ServiceAccount: fmt.Sprint(i)} }
	for i := range 2 * maxAllReports {
		m.report(report{key: reportKey{name: fmt.Sprint(i), who: identity(0)}})
		m.report(report{key: reportKey{name: "same", who: identity(1)}})
		m.report(report{key: reportKey{name: "same", who: identity(i)}})
	}
	if n := m.reporters[identity(0)]; n != maxReports {
		t.Errorf("%d reports of one identity, want %d", n, maxReports)
	}
	if len(m.reports) != maxAllReports {
		t.Errorf("%d reports, want %d", len(m.reports), maxAllReports)
	}

	h := drivenHub()
	v := testView{xdswire.ClusterType, "v"}
	live := &liveView{view: v}
	resources := make(map[string]*xdswire.Resource)
	for i := range 2 * maxViewReports {
		name := fmt.Sprint(i)
		resources[name] = h.encoder.Raw(xdswire.ClusterType, name, []byte(name))
	}
	live.state.Store((*viewState)(nil).next(1, resources))
	h.views.all[v] = live
	reports := make(map[reportKey]report)
	for i := range 2 * maxViewReports {
		name := fmt.Sprint(i)
		for _, who := range []int{i % 100, i%100 + 1} {
			key := reportKey{view: v, name: name, envoy: "1", version: resources[name].Version, who: identity(who)}
			reports[key] = report{key: key}
		}
	}
	h.judge(nil, reports)
	sum := 0
	for _, n := range h.held.by {
		sum += n
	}
	if len(live.suspects) != maxViewReports || sum != h.held.reports || h.held.reports < maxViewReports {
		t.Errorf("%d suspects, %d reports, %d of identities", len(live.suspects), h.held.reports, sum)
	}
	h.endView(live)
	if len(live.suspects) != 0 || len(h.held.by) != 0 || h.held.reports != 0 {
		t.Errorf("left over: %d suspects, %d reports of %d identities", len(live.suspects), h.held.reports, len(h.held.by))
	}
}

// TestKeptViewsAreBounded has more views end than are kept.
func TestKeptViewsAreBounded(t *testing.T) {
	h := drivenHub()
	for i := range 2 * maxKept {
		v := &liveView{view: testView{xdswire.ClusterType, fmt.Sprint(i)}}
		v.held.Store(&heldTable{})
		h.views.all[v.view], h.views.unused[v] = v, struct{}{}
	}
	h.sweep()
	if len(h.views.all) != maxKept || len(h.held.idle) != maxKept {
		t.Errorf("%d views are kept, %d of them idle; want %d", len(h.views.all), len(h.held.idle), maxKept)
	}
}

// TestHeldBackIsShared compares what proxies are given by address: a thousand
// proxies must not cost a thousand lists.
func TestHeldBackIsShared(t *testing.T) {
	h := drivenHub()
	var e xdswire.Encoder
	resources := make(map[string]*xdswire.Resource)
	for _, name := range []string{"a", "b", "c"} {
		resources[name] = e.Raw(xdswire.ClusterType, name, []byte(name))
	}
	now := pair{shared: (*viewState)(nil).next(1, resources)}
	good := e.Raw(xdswire.ClusterType, "a", []byte("good"))
	held := heldPair{{names: map[string]*heldBack{"a": {id: 1, version: resources["a"].Version, good: goodVersion{resource: good, seq: 1}}}}}
	var first pair
	for i := range 3 {
		s := &session{hub: h, sub: &subscriber{}}
		s.types[cds].want.Wildcard = true
		got := s.left(cds, now, held)
		if got.get("a") != good || got.get("b") != resources["b"] {
			t.Fatalf("given %v", got.shared.resources)
		}
		if i == 0 {
			first = got
		}
		if got != first || s.left(cds, now, held) != first {
			t.Error("proxies do not share what they are given")
		}
		if s.left(cds, now, heldPair{}) != now || s.types[cds].withheld != nil {
			t.Error("what is no longer held back is remembered")
		}
	}
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := xdswire.Any(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestVital(t *testing.T) {
	listener := func(filters ...proto.Message) proto.Message {
		chain := &listenerv3.FilterChain{}
		for _, f := range filters {
			chain.Filters = append(chain.Filters, &listenerv3.Filter{ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, f)}})
		}
		return &listenerv3.Listener{Name: "l", FilterChains: []*listenerv3.FilterChain{chain}}
	}
	http := func(filter proto.Message) proto.Message {
		return &hcmv3.HttpConnectionManager{HttpFilters: []*hcmv3.HttpFilter{{ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed(t, filter)}}}}
	}
	socket := func(m proto.Message) proto.Message {
		return &clusterv3.Cluster{Name: "c", TransportSocketMatches: []*clusterv3.Cluster_TransportSocketMatch{{
			TransportSocket: &corev3.TransportSocket{ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(t, m)}},
		}}}
	}
	route := func(m proto.Message) proto.Message {
		return &routev3.RouteConfiguration{Name: "r", VirtualHosts: []*routev3.VirtualHost{{
			Routes: []*routev3.Route{{TypedPerFilterConfig: map[string]*anypb.Any{"rbac": packed(t, m)}}},
		}}}
	}
	for _, tt := range []struct {
		name string
		m    proto.Message
		want bool
	}{
		{"TCP proxy", listener(&tcpproxyv3.TcpProxy{}), false},
		{"HTTP router", listener(http(&routerv3.Router{})), false},
		{"network RBAC", listener(&rbacv3.RBAC{}, &tcpproxyv3.TcpProxy{}), true},
		{"HTTP RBAC", listener(http(&rbachttpv3.RBAC{})), true},
		{"JWT", listener(http(&jwtv3.JwtAuthentication{})), true},
		{"external authorization", listener(http(&extauthzv3.ExtAuthz{})), true},
		{"RBAC as TypedStruct", listener(http(&typedv3.TypedStruct{TypeUrl: "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"})), true},
		{"RBAC by ECDS", listener(&hcmv3.HttpConnectionManager{HttpFilters: []*hcmv3.HttpFilter{{
			ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
				TypeUrls: []string{"type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"},
			}},
		}}}), true},
		{"RBAC as extension", &corev3.TypedExtensionConfig{Name: "x", TypedConfig: packed(t, &rbachttpv3.RBAC{})}, true},
		{"listener with TLS", &listenerv3.Listener{FilterChains: []*listenerv3.FilterChain{{
			TransportSocket: &corev3.TransportSocket{ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(t, &tlsv3.DownstreamTlsContext{})}},
		}}}, true},
		{"cluster with TLS", socket(&tlsv3.UpstreamTlsContext{}), true},
		{"cluster without TLS", socket(&rawv3.RawBuffer{}), false},
		{"route", route(&routerv3.Router{}), false},
		{"route with RBAC", route(&rbachttpv3.RBACPerRoute{}), true},
		{"route with JWT", route(&jwtv3.PerRouteConfig{}), true},
		{"route with external authorization", route(&extauthzv3.ExtAuthzPerRoute{}), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var e xdswire.Encoder
			r, err := e.Resource("x", "y", tt.m)
			if err != nil {
				t.Fatal(err)
			}
			if got := vital(r); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// heldNow is how many resources are held back.
func (h *Hub) heldNow() int {
	if list := h.heldList.Load(); list != nil {
		return len(*list)
	}
	return 0
}

// checkSent checks what the model's proxy is sent now: nothing of a view that
// is not its own, and nothing that is held back from it, unless it accepted
// the very bytes before.
func (p *modelProxy) checkSent(f *xdswire.Frame) {
	p.t.Helper()
	var m discoveryv3.DiscoveryResponse
	var d discoveryv3.DeltaDiscoveryResponse
	var bodies []*anypb.Any
	b, url := f.Buffers().Materialize(), ""
	if p.variant == xdswire.SotW {
		if err := proto.Unmarshal(b, &m); err != nil {
			p.t.Fatal(err)
		}
		url, bodies = m.GetTypeUrl(), m.GetResources()
	} else {
		if err := proto.Unmarshal(b, &d); err != nil {
			p.t.Fatal(err)
		}
		url = d.GetTypeUrl()
		for _, r := range d.GetResources() {
			bodies = append(bodies, r.GetResource())
		}
	}
	typ := xdswire.ShortType(url)
	views := p.sess.sub.assigned.Load().types[typeIndex(url)]
	shared, _ := views.shared.view.(testView)
	held := views.held(p.envoy)
	now, _ := views.pair()
	for _, body := range bodies {
		content := decode(p.t, body)
		if p.ever[typ+"/"+content] {
			continue
		}
		name, value, _ := strings.Cut(content, ":")
		if view, _, ok := strings.Cut(value, "."); ok && view != shared.name && view != p.name {
			p.t.Fatalf("%s: %s is sent of another view, not %s", p.name, content, shared.name)
		}
		// A proxy of the state of the world that connects anew may be taken to
		// have accepted what it did not ask for.
		if p.variant == xdswire.SotW && (typ == "EDS" || typ == "RDS") {
			continue
		}
		for k, state := range []*viewState{now.shared, now.own} {
			is := state.get(name)
			if is == nil || held[k] == nil || held[k].names[name] == nil || held[k].names[name].version != is.Version {
				continue
			}
			bad, err := is.Any()
			if err != nil {
				p.t.Fatal(err)
			}
			if decode(p.t, bad) == content {
				p.t.Fatalf("%s: %s is held back and sent", p.name, content)
			}
		}
	}
}

// heldBack reports whether the server says that a resource is held back from
// the model's proxy, which may have refused what it was given in place.
func (p *modelProxy) heldBack(i int, name string) bool {
	p.sess.sub.mu.Lock()
	defer p.sess.sub.mu.Unlock()
	for _, names := range p.sess.sub.assigned.Load().types[i].held(p.envoy) {
		if names == nil || names.names[name] == nil {
			continue
		}
		st := &p.sess.sub.status[i]
		if slices.Contains(st.heldBack, names.names[name].id) || slices.ContainsFunc(st.refused, func(r *Refused) bool { return r.Resource == name }) {
			return true
		}
	}
	return false
}
