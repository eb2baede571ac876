package xds

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// small returns a mesh of two clusters with endpoints, a listener and a route.
func small() *testMesh {
	return newTestMesh().
		set("CDS", "shared", "a", "a:1").set("CDS", "shared", "b", "b:1").
		set("EDS", "shared", "a", "a:1").set("EDS", "shared", "b", "b:1").
		set("LDS", "shared", "l", "l:1").set("RDS", "shared", "r", "r:1")
}

func TestFirstRequestIsAnswered(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small().set("CDS", "p", "own", "own:1"))
		c := b.connect(v, "p")
		c.subscribe("CDS")
		r := c.wantAck("CDS", "a=a:1 b=b:1 own=own:1")
		if len(r.version) != 16 {
			t.Errorf("version %q is not a hash in hex", r.version)
		}
		c.subscribe("EDS", "b")
		c.wantAck("EDS", "b=b:1")
		c.subscribe("LDS")
		c.wantAck("LDS", "l=l:1")
		c.subscribe("RDS", "r")
		c.wantAck("RDS", "r=r:1")
	})
}

func TestEmptyWildcardIsAnswered(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, newTestMesh())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "")
		c.subscribe("LDS", "*")
		c.wantAck("LDS", "")
		c.quiet()
	})
}

func TestExplicitWildcard(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "*")
		c.wantAck("EDS", "a=a:1 b=b:1")
		b.mesh.set("EDS", "shared", "c", "c:1")
		b.push()
		c.wantAck("EDS", "c=c:1")
	})
}

func TestAckIsNotAnswered(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		r := c.wantAck("CDS", "a=a:1 b=b:1")
		c.ack(r)
		c.quiet()
	})
}

func TestPushSendsOnlyWhatChanged(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a", "b", "c")
		if v == xdswire.Delta {
			c.wantAck("EDS", "a=a:1 b=b:1", "c")
		} else {
			c.wantAck("EDS", "a=a:1 b=b:1 c=c:fallback")
		}
		b.mesh.set("EDS", "shared", "a", "a:2").set("EDS", "shared", "d", "d:1")
		b.push()
		c.wantAck("EDS", "a=a:2")
		b.mesh.set("EDS", "shared", "d", "d:2")
		b.push()
		c.quiet()
		b.mesh.set("EDS", "shared", "c", "c:1")
		b.push()
		c.wantAck("EDS", "c=c:1")
	})
}

func TestFullListOfClustersAndListeners(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.SotW, "p")
	c.subscribe("CDS")
	c.wantAck("CDS", "a=a:1 b=b:1")
	b.mesh.set("CDS", "shared", "a", "a:2")
	b.push()
	c.wantAck("CDS", "a=a:2 b=b:1")
	b.mesh.set("CDS", "shared", "a", "")
	b.push()
	c.wantAck("CDS", "b=b:1")
	d := b.connect(xdswire.SotW, "q")
	d.subscribe("CDS", "b", "x")
	d.wantAck("CDS", "b=b:1")
	b.mesh.set("CDS", "shared", "y", "y:1")
	b.push()
	d.quiet()
	b.mesh.set("CDS", "shared", "x", "x:1")
	b.push()
	d.wantAck("CDS", "b=b:1 x=x:1")
	d.subscribe("CDS", "x")
	d.wantAck("CDS", "x=x:1")
}

func TestRemoval(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "a=a:1 b=b:1")
		b.mesh.set("CDS", "shared", "a", "").set("EDS", "shared", "a", "")
		b.push()
		if v == xdswire.SotW {
			c.wantAck("CDS", "b=b:1")
		} else {
			c.wantAck("CDS", "", "a")
			c.wantAck("EDS", "", "a")
		}
		c.quiet()
	})
}

func TestMissingNamesAreAnswered(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("RDS", "r", "nowhere")
		// Envoy ignores the removal of routes, so routes always get an answer.
		c.wantAck("RDS", "nowhere=nowhere:fallback r=r:1")
		c.subscribe("EDS", "nowhere")
		if v == xdswire.SotW {
			c.wantAck("EDS", "nowhere=nowhere:fallback")
		} else {
			c.wantAck("EDS", "", "nowhere")
		}
		b.mesh.set("RDS", "shared", "nowhere", "nowhere:1")
		b.push()
		c.wantAck("RDS", "nowhere=nowhere:1")
	})
}

func TestSubscribeMore(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		c.wantAck("EDS", "a=a:1")
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "b=b:1")
		c.subscribe("EDS", "b") // a removal gets no answer
		c.quiet()
		b.mesh.set("EDS", "shared", "a", "a:2")
		b.push()
		c.quiet()
		c.subscribe("EDS", "b", "a")
		c.wantAck("EDS", "a=a:2")
	})
}

func TestDeltaSubscribesAgain(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("EDS", "a")
	c.wantAck("EDS", "a=a:1")
	c.names["EDS"] = nil // requests a again
	c.subscribe("EDS", "a")
	c.wantAck("EDS", "a=a:1")
}

func TestUnsubscribeAll(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		c.wantAck("EDS", "a=a:1")
		c.subscribe("EDS")
		c.quiet()
		b.mesh.set("EDS", "shared", "a", "a:2")
		b.push()
		c.quiet()
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "a=a:2 b=b:1")
	})
}

func TestStaleNonceIsIgnored(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		r := c.want("EDS", "a=a:1")
		c.request("EDS", "never", []string{"a", "b"}, nil, "")
		c.quiet()
		if n := b.metric("meshctl_xds_expired_nonce_total", "EDS"); n != 1 {
			t.Errorf("%v stale nonces counted, want 1", n)
		}
		// The delta variant does not repeat names, so these count. The response in
		// flight still waits for its answer.
		c.ack(r)
		c.wantAck("EDS", "b=b:1")
		c.quiet()
	})
}

func TestNameDroppedDuringResponse(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.SotW, "p")
	c.subscribe("EDS", "a", "b")
	first := c.wantAck("EDS", "a=a:1 b=b:1")
	b.mesh.set("EDS", "shared", "b", "b:2")
	b.push()
	second := c.want("EDS", "b=b:2")
	c.request("EDS", first.nonce, []string{"b"}, nil, "")
	c.request("EDS", first.nonce, []string{"a", "b"}, nil, "")
	c.ack(second)
	c.wantAck("EDS", "a=a:1")
}

func TestOneResponseInFlight(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a", "b")
		r := c.want("EDS", "a=a:1 b=b:1")
		for i := 2; i < 9; i++ {
			b.mesh.set("EDS", "shared", "a", fmt.Sprintf("a:%d", i))
			b.push()
		}
		b.mesh.set("EDS", "shared", "b", "b:2")
		b.push()
		c.quiet()
		c.ack(r)
		c.wantAck("EDS", "a=a:8 b=b:2") // the newest, once
		c.quiet()
	})
}

func TestReconnectWithNonce(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.request("CDS", "old", nil, nil, "")
		c.wantAck("CDS", "a=a:1 b=b:1")
	})
}

func TestDeltaReconnectSendsOnlyWhatDiffers(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("CDS")
	clusters := c.wantAck("CDS", "a=a:1 b=b:1").versions
	c.subscribe("EDS", "a", "b")
	endpoints := c.wantAck("EDS", "a=a:1 b=b:1").versions
	c.cancel()

	same := b.connect(xdswire.Delta, "p")
	same.reconnect("CDS", clusters)
	same.wantAck("CDS", "")
	same.reconnect("EDS", endpoints, "a", "b")
	same.wantAck("EDS", "a=a:1 b=b:1")
	same.reconnect("LDS", map[string]string{"l": "other", "gone": "1"})
	same.wantAck("LDS", "l=l:1", "gone")
	same.cancel()

	b.mesh.set("CDS", "shared", "b", "").set("CDS", "shared", "c", "c:1").set("CDS", "shared", "a", "a:2").
		set("EDS", "shared", "b", "")
	b.push()
	c = b.connect(xdswire.Delta, "p")
	c.reconnect("CDS", clusters)
	c.wantAck("CDS", "a=a:2 c=c:1")
	// A proxy is subscribed to the resources that it holds.
	endpoints["gone"] = "1"
	c.reconnect("EDS", endpoints, "a", "b")
	c.wantAck("EDS", "a=a:1", "b", "gone")
	c.reconnect("LDS", nil)
	c.wantAck("LDS", "l=l:1")
	c.subscribe("RDS", "r")
	c.wantAck("RDS", "r=r:1")
	c.wantAck("CDS", "", "b") // no listener and no route refers to it any more
}

func TestChangedClusterGetsItsEndpoints(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "a=a:1 b=b:1")
		b.mesh.set("CDS", "shared", "a", "a:2")
		b.push()
		if v == xdswire.SotW {
			c.wantAck("CDS", "a=a:2 b=b:1")
		} else {
			c.wantAck("CDS", "a=a:2")
		}
		c.wantAck("EDS", "a=a:1")
		c.quiet()
	})
}

func TestClustersAskedForAfterEndpoints(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		r := c.wantAck("EDS", "a=a:1")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		if v == xdswire.SotW {
			c.ack(r) // looks like an ACK, but gets an answer once
		}
		r = c.wantAck("EDS", "a=a:1")
		c.ack(r)
		c.quiet()
	})
}

func TestDeltaClusterRequestIsFollowedByEndpoints(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("CDS", "a")
	c.wantAck("CDS", "a=a:1")
	c.subscribe("EDS", "a", "b")
	c.wantAck("EDS", "a=a:1 b=b:1")
	c.subscribe("CDS", "a", "b")
	c.wantAck("CDS", "b=b:1")
	c.wantAck("EDS", "a=a:1 b=b:1")
	c.quiet()
}

func TestPushOrder(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		for _, sub := range []struct{ typ, name string }{{"RDS", "r"}, {"LDS", "*"}, {"EDS", "a"}, {"CDS", "*"}} {
			c.subscribe(sub.typ, sub.name)
			c.ack(c.recv())
		}
		if v == xdswire.Delta {
			c.wantAck("EDS", "a=a:1")
		}
		c.quiet()
		b.mesh.set("RDS", "shared", "r", "r:2").set("LDS", "shared", "l", "l:2").
			set("EDS", "shared", "a", "a:2").set("CDS", "shared", "a", "a:2").set("CDS", "shared", "b", "")
		b.push()
		c.wantAck("CDS", "a=a:2")
		c.wantAck("EDS", "a=a:2")
		c.wantAck("LDS", "l=l:2")
		c.wantAck("RDS", "r=r:2")
		if v == xdswire.Delta {
			c.wantAck("CDS", "", "b")
		}
	})
}

// TestRoutesFollowNewClusters: routes wait until the proxy has accepted new clusters.
func TestRoutesFollowNewClusters(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b, c := clustersAndRoute(t, v, Limits{ClusterWait: time.Minute})
		b.mesh.set("CDS", "shared", "b", "b:1").set("RDS", "shared", "r", "r:2")
		b.push()
		clusters := c.recv()
		if clusters.typ != "CDS" || clusters.resources["b"] != "b:1" {
			t.Fatalf("got %s {%s}", clusters.typ, contents(clusters.resources))
		}
		c.subscribe("EDS", "b") // its answer comes before the routes
		c.wantAck("EDS", "b=b:1")
		c.ack(clusters)
		c.wantAck("RDS", "r=r:2")
	})
}

// TestRemovedClustersFollowRoutes: a cluster is removed after the routes, and stays if it comes
// back meanwhile.
func TestRemovedClustersFollowRoutes(t *testing.T) {
	b, c := clustersAndRoute(t, xdswire.Delta, Limits{ClusterWait: time.Minute})
	b.mesh.set("CDS", "shared", "a", "").set("RDS", "shared", "r", "r:2")
	b.push()
	routes := c.want("RDS", "r=r:2")
	b.mesh.set("CDS", "shared", "a", "a:1")
	b.push()
	c.wantAck("CDS", "a=a:1")
	c.ack(routes)
	c.wantAck("CDS", "a=a:1")
	b.mesh.set("CDS", "shared", "a", "").set("RDS", "shared", "r", "r:3")
	b.push()
	c.wantAck("RDS", "r=r:3")
	c.wantAck("CDS", "", "a")
}

// TestReturningProxyKeepsClusters: a proxy that returns keeps a cluster that is gone until it has
// the newer listeners and routes.
func TestReturningProxyKeepsClusters(t *testing.T) {
	b := startServer(t, small().set("RDS", "shared", "r", "r:2"), withoutTimeouts, func(c *Config, _ *Access) { c.Limits.ClusterWait = time.Minute })
	c := b.connect(xdswire.Delta, "p")
	c.reconnect("CDS", map[string]string{"a": "x", "gone": "x"})
	c.wantAck("CDS", "a=a:1 b=b:1")
	c.subscribe("LDS", "*")
	c.wantAck("LDS", "l=l:1")
	c.subscribe("RDS", "r")
	c.wantAck("RDS", "r=r:2")
	c.wantAck("CDS", "", "gone")
}

// TestReturningProxyWaitsForNewClusters: a proxy that returns gets routes after it has accepted the
// clusters that are new, although it requests both at once.
func TestReturningProxyWaitsForNewClusters(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small(), withoutTimeouts, func(c *Config, _ *Access) { c.Limits.ClusterWait = time.Minute })
		c := b.connect(v, "p")
		c.reconnect("CDS", map[string]string{"a": "x"})
		clusters := c.recv()
		if clusters.typ != "CDS" || clusters.resources["b"] != "b:1" {
			t.Fatalf("got %s {%s}", clusters.typ, contents(clusters.resources))
		}
		c.subscribe("LDS", "*")
		c.subscribe("RDS", "r")
		c.subscribe("EDS", "b") // its answer comes before the others
		c.wantAck("EDS", "b=b:1")
		c.subscribe("EDS", "b", "none")
		if got := c.recv(); got.typ != "EDS" {
			t.Fatalf("got %s before the proxy has accepted its clusters", got.typ)
		}
		c.ack(clusters)
		c.wantAck("LDS", "l=l:1")
		c.wantAck("RDS", "r=r:1")
	})
}

// TestClusterWaitEnds: routes follow new clusters that the proxy does not accept, and
// removed clusters follow routes that it does not accept.
func TestClusterWaitEnds(t *testing.T) {
	b, c := clustersAndRoute(t, xdswire.Delta, Limits{ClusterWait: 100 * time.Millisecond})
	b.mesh.set("CDS", "shared", "b", "b:1").set("RDS", "shared", "r", "r:2")
	b.push()
	clusters := c.want("CDS", "b=b:1")
	c.wantAck("RDS", "r=r:2")
	c.ack(clusters)
	b.mesh.set("CDS", "shared", "a", "").set("RDS", "shared", "r", "r:3")
	b.push()
	c.want("RDS", "r=r:3")
	c.wantAck("CDS", "", "a")
}

// clustersAndRoute returns a proxy that has a cluster and a route.
func clustersAndRoute(t *testing.T, v xdswire.Variant, limits Limits) (*testServer, *client) {
	b := startServer(t, newTestMesh().set("CDS", "shared", "a", "a:1").set("EDS", "shared", "b", "b:1").set("RDS", "shared", "r", "r:1"), func(c *Config, _ *Access) { c.Limits = limits })
	c := b.connect(v, "p")
	c.subscribe("CDS")
	c.wantAck("CDS", "a=a:1")
	c.subscribe("RDS", "r")
	c.wantAck("RDS", "r=r:1")
	return b, c
}

func TestRoutesWaitForClusters(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, newTestMesh().set("CDS", "shared", "a", "a:1").set("RDS", "shared", "r", "r:1"))
		c := b.connect(v, "p")
		c.subscribe("RDS", "r")
		c.wantAck("RDS", "r=r:1")
		c.subscribe("CDS")
		first := c.want("CDS", "a=a:1")
		b.mesh.set("CDS", "shared", "a", "a:2").set("RDS", "shared", "r", "r:2")
		b.push()
		c.ack(first)
		c.wantAck("CDS", "a=a:2")
		c.wantAck("RDS", "r=r:2")
	})
}

func TestUnknownTypesAreIgnored(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("type.googleapis.com/istio.workload.Address")
		for i := range 100 {
			c.subscribe(fmt.Sprintf("type.googleapis.com/x%d", i), "name")
		}
		c.subscribe("SDS", "default")
		c.quiet()
		if n := len(b.hub.Proxies()[0].Types); n != 2 {
			t.Errorf("%d types kept, want SDS and RDS", n)
		}
	})
}

func TestNewViewSendsTheDifference(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small().set("EDS", "other", "a", "a:1").set("EDS", "other", "b", "b:other"))
		c := b.connect(v, "p")
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "a=a:1 b=b:1")
		b.mesh.view("p", "other")
		b.push()
		c.wantAck("EDS", "b=b:other")
		b.mesh.set("EDS", "shared", "a", "a:2") // no longer in its view
		b.push()
		c.quiet()
		b.mesh.set("EDS", "other", "a", "a:3")
		b.push()
		c.wantAck("EDS", "a=a:3")
		b.eventually("the old views to go", func() bool { return b.metric("meshctl_xds_views", "") == 4 }) // the views of EDS and RDS remain, which quiet uses
	})
}

func TestVersionFromTheFuture(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.SotW, "p")
	c.first = false
	err := c.sotw.Send(&discoveryv3.DiscoveryRequest{Node: c.node, TypeUrl: xdswire.ClusterType, VersionInfo: "99999999", ResponseNonce: "77"})
	if err != nil {
		t.Fatal(err)
	}
	c.wantAck("CDS", "a=a:1 b=b:1")
	d := b.connect(xdswire.Delta, "p")
	d.reconnect("CDS", map[string]string{"a": "99999999", "b": "from elsewhere"})
	d.wantAck("CDS", "a=a:1 b=b:1")
}

func TestDeltaSubscriptions(t *testing.T) {
	t.Parallel()
	b := startServer(t, small(), withoutTimeouts)
	typ := xdswire.ClusterType
	send := func(c *client, subscribe, unsubscribe []string, held map[string]string) {
		t.Helper()
		r := &discoveryv3.DeltaDiscoveryRequest{
			TypeUrl: typ, ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe, InitialResourceVersions: held,
		}
		if c.first {
			r.Node, c.first = c.node, false
		}
		if err := c.delta.Send(r); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	c := b.connect(xdswire.Delta, "p")
	send(c, []string{"a"}, []string{"never heard of"}, nil)
	c.wantAck("CDS", "a=a:1")
	for range 20 { // each time the wildcard is added, everything is sent
		send(c, []string{"*"}, nil, nil)
		c.wantAck("CDS", "a=a:1 b=b:1")
		send(c, nil, []string{"*", "nor of this"}, nil)
	}
	c.quiet()

	held := make(map[string]string)
	for i := range 50_000 {
		held[fmt.Sprint("gone", i)] = "v"
	}
	typ = xdswire.ListenerType
	d := b.connect(xdswire.Delta, "p")
	send(d, nil, nil, held)
	if r := d.recv(); len(r.removed) != len(held) || contents(r.resources) != "l=l:1" {
		t.Errorf("%d removed and %v, want all that are gone removed and the rest", len(r.removed), r.resources)
	}

	for i := range 300_000 { // more than fit into a request
		held[fmt.Sprint("gone", i)] = "v"
	}
	e := b.connect(xdswire.Delta, "p")
	send(e, nil, nil, held)
	if s := e.status(); s.Code() != codes.ResourceExhausted {
		t.Errorf("300,000 versions: got %v", s)
	}
}

// TestContinuousChanges: Changes do not stop, so a server that waited for a pause would
// never send.
func TestContinuousChanges(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		var clients []*client
		for i := range 10 {
			c := b.connect(v, fmt.Sprintf("p%d", i))
			c.subscribe("EDS", "a")
			clients = append(clients, c)
		}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for i := 1; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				b.mesh.set("EDS", "shared", "a", fmt.Sprintf("a:%d", i))
				b.hub.Update(b.mesh.take())
			}
		}()
		for _, c := range clients {
			last := -1
			for range 20 {
				r := c.recv()
				c.ack(r)
				var n int
				if _, err := fmt.Sscanf(r.resources["a"], "a:%d", &n); err != nil {
					t.Fatal(err)
				}
				if n < last {
					t.Errorf("%d came after %d", n, last)
				}
				last = n
			}
		}
		close(stop)
		<-stopped
	})
}
