package xds

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// small is two clusters with endpoints, a listener and a route.
func small() *world {
	return newWorld().
		set("CDS", "shared", "a", "a:1").set("CDS", "shared", "b", "b:1").
		set("EDS", "shared", "a", "a:1").set("EDS", "shared", "b", "b:1").
		set("LDS", "shared", "l", "l:1").set("RDS", "shared", "r", "r:1")
}

func TestFirstRequestIsAnswered(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small().set("CDS", "p", "own", "own:1"))
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
		b := start(t, newWorld())
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
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "*")
		c.wantAck("EDS", "a=a:1 b=b:1")
		b.world.set("EDS", "shared", "c", "c:1")
		b.push()
		c.wantAck("EDS", "c=c:1")
	})
}

func TestAckIsNotAnswered(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		r := c.wantAck("CDS", "a=a:1 b=b:1")
		c.ack(r)
		c.quiet()
	})
}

func TestPushSendsOnlyWhatChanged(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a", "b", "c")
		if v == xdswire.Delta {
			c.wantAck("EDS", "a=a:1 b=b:1", "c")
		} else {
			c.wantAck("EDS", "a=a:1 b=b:1 c=c:fallback")
		}
		b.world.set("EDS", "shared", "a", "a:2").set("EDS", "shared", "d", "d:1")
		b.push()
		c.wantAck("EDS", "a=a:2")
		b.world.set("EDS", "shared", "d", "d:2")
		b.push()
		c.quiet()
		b.world.set("EDS", "shared", "c", "c:1")
		b.push()
		c.wantAck("EDS", "c=c:1")
	})
}

func TestFullListOfClustersAndListeners(t *testing.T) {
	b := start(t, small())
	c := b.connect(xdswire.SotW, "p")
	c.subscribe("CDS")
	c.wantAck("CDS", "a=a:1 b=b:1")
	b.world.set("CDS", "shared", "a", "a:2")
	b.push()
	c.wantAck("CDS", "a=a:2 b=b:1")
	b.world.set("CDS", "shared", "a", "")
	b.push()
	c.wantAck("CDS", "b=b:1")
	d := b.connect(xdswire.SotW, "q")
	d.subscribe("CDS", "b", "x")
	d.wantAck("CDS", "b=b:1")
	b.world.set("CDS", "shared", "y", "y:1")
	b.push()
	d.quiet()
	b.world.set("CDS", "shared", "x", "x:1")
	b.push()
	d.wantAck("CDS", "b=b:1 x=x:1")
	d.subscribe("CDS", "x")
	d.wantAck("CDS", "x=x:1")
}

func TestRemoval(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "a=a:1 b=b:1")
		b.world.set("CDS", "shared", "a", "").set("EDS", "shared", "a", "")
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
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("RDS", "r", "nowhere")
		// Envoy ignores the removal of routes, so routes are answered always.
		c.wantAck("RDS", "nowhere=nowhere:fallback r=r:1")
		c.subscribe("EDS", "nowhere")
		if v == xdswire.SotW {
			c.wantAck("EDS", "nowhere=nowhere:fallback")
		} else {
			c.wantAck("EDS", "", "nowhere")
		}
		b.world.set("RDS", "shared", "nowhere", "nowhere:1")
		b.push()
		c.wantAck("RDS", "nowhere=nowhere:1")
	})
}

func TestSubscribeMore(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		c.wantAck("EDS", "a=a:1")
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "b=b:1")
		c.subscribe("EDS", "b") // a removal gets no answer
		c.quiet()
		b.world.set("EDS", "shared", "a", "a:2")
		b.push()
		c.quiet()
		c.subscribe("EDS", "b", "a")
		c.wantAck("EDS", "a=a:2")
	})
}

func TestDeltaSubscribesAgain(t *testing.T) {
	b := start(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("EDS", "a")
	c.wantAck("EDS", "a=a:1")
	c.names["EDS"] = nil // asks for a once more
	c.subscribe("EDS", "a")
	c.wantAck("EDS", "a=a:1")
}

func TestUnsubscribeAll(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		c.wantAck("EDS", "a=a:1")
		c.subscribe("EDS")
		c.quiet()
		b.world.set("EDS", "shared", "a", "a:2")
		b.push()
		c.quiet()
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "a=a:2 b=b:1")
	})
}

func TestStaleNonceIsIgnored(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		r := c.want("EDS", "a=a:1")
		c.request("EDS", "never", []string{"a", "b"}, nil, "")
		c.quiet()
		if n := b.metric("meshctl_xds_expired_nonce_total", "EDS"); n != 1 {
			t.Errorf("%v stale nonces counted, want 1", n)
		}
		// The delta variant does not repeat names, so those count. What was
		// sent still waits for its answer.
		c.ack(r)
		c.wantAck("EDS", "b=b:1")
		c.quiet()
	})
}

func TestNameGivenUpWhileAResponseIsInFlight(t *testing.T) {
	b := start(t, small())
	c := b.connect(xdswire.SotW, "p")
	c.subscribe("EDS", "a", "b")
	first := c.wantAck("EDS", "a=a:1 b=b:1")
	b.world.set("EDS", "shared", "b", "b:2")
	b.push()
	second := c.want("EDS", "b=b:2")
	c.request("EDS", first.nonce, []string{"b"}, nil, "")
	c.request("EDS", first.nonce, []string{"a", "b"}, nil, "")
	c.ack(second)
	c.wantAck("EDS", "a=a:1")
}

func TestOneResponseInFlight(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a", "b")
		r := c.want("EDS", "a=a:1 b=b:1")
		for i := 2; i < 9; i++ {
			b.world.set("EDS", "shared", "a", fmt.Sprintf("a:%d", i))
			b.push()
		}
		b.world.set("EDS", "shared", "b", "b:2")
		b.push()
		c.quiet()
		c.ack(r)
		c.wantAck("EDS", "a=a:8 b=b:2") // the newest, once
		c.quiet()
	})
}

func TestNackKeepsLastGood(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a", "b")
		good := c.wantAck("EDS", "a=a:1 b=b:1")
		b.world.set("EDS", "shared", "a", "a:bad")
		b.push()
		bad := c.want("EDS", "a=a:bad")
		c.nack(bad, "a is no good")
		c.quiet() // it is not sent again
		p := b.hub.Proxies()[0].Types["EDS"]
		if p.Acked != good.version || p.Sent != bad.version || p.NACK == nil ||
			p.NACK.Message != "a is no good" || p.NACK.Version != bad.version {
			t.Errorf("status %+v (NACK %+v), want acked %s, sent and refused %s", p, p.NACK, good.version, bad.version)
		}
		if n := b.metric("meshctl_xds_nacks_total", "EDS"); n != 1 {
			t.Errorf("%v NACKs counted, want 1", n)
		}
		if l := b.logs.String(); !strings.Contains(l, "proxy=p.ns-1") || !strings.Contains(l, "a is no good") {
			t.Errorf("the log does not name proxy and error:\n%s", l)
		}
		// The next change brings what the proxy may lack: a is as it was
		// acknowledged, but the proxy may have taken the refused one.
		b.world.set("EDS", "shared", "a", "a:1").set("EDS", "shared", "b", "b:2")
		b.push()
		c.wantAck("EDS", "a=a:1 b=b:2")
		c.quiet()
		if p := b.hub.Proxies()[0].Types["EDS"]; p.NACK != nil {
			t.Errorf("the NACK stands after an ACK: %+v", p.NACK)
		}
	})
}

func TestNackedClustersAreRepaired(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		b.world.set("CDS", "shared", "a", "").set("CDS", "shared", "x", "x:bad")
		b.push()
		refused, removed := "b=b:1 x=x:bad", []string(nil)
		if v == xdswire.Delta {
			refused, removed = "x=x:bad", []string{"a"}
		}
		c.nack(c.want("CDS", refused, removed...), "x is no good")
		// The rest of the response is sent again, as the proxy may lack it.
		if v == xdswire.SotW {
			c.wantAck("CDS", "b=b:1")
		} else {
			c.wantAck("CDS", "", "a")
		}
		c.quiet()
		b.world.set("CDS", "shared", "a", "a:1").set("CDS", "shared", "x", "")
		b.push()
		if v == xdswire.SotW {
			c.wantAck("CDS", "a=a:1 b=b:1")
		} else {
			c.wantAck("CDS", "a=a:1", "x") // it may have removed a and taken x
		}
		c.quiet()
	})
}

func TestSubscribeAfterNack(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small().set("EDS", "shared", "c", "c:1"))
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		c.wantAck("EDS", "a=a:1")
		b.world.set("EDS", "shared", "a", "a:bad")
		b.push()
		c.nack(c.want("EDS", "a=a:bad"), "no good")
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "b=b:1") // without what was refused
		b.world.set("EDS", "shared", "c", "c:2")
		b.push()
		c.quiet() // c is not asked for, and the refused a not sent again
	})
}

func TestNackOfFirstResponse(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.nack(c.want("CDS", "a=a:1 b=b:1"), "no good")
		c.wantAck("CDS", "a=a:1") // looking for the one to blame
		if v == xdswire.SotW {
			c.nack(c.want("CDS", "a=a:1 b=b:1"), "no good")
		} else {
			c.nack(c.want("CDS", "b=b:1"), "no good")
		}
		c.quiet()
		b.world.set("CDS", "shared", "b", "")
		b.push()
		if v == xdswire.SotW {
			c.wantAck("CDS", "a=a:1")
		} else {
			c.wantAck("CDS", "", "b")
		}
		c.quiet()
	})
}

func TestDeltaNackOfEverything(t *testing.T) {
	b := start(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("CDS", "a")
	c.wantAck("CDS", "a=a:1")
	c.reconnect("EDS", map[string]string{"gone": "1"}, "a", "b")
	c.nack(c.want("EDS", "a=a:1 b=b:1", "gone"), "no good")
	c.wantAck("EDS", "a=a:1", "gone")
	c.nack(c.want("EDS", "b=b:1"), "no good")
	c.names["EDS"] = []string{"a", "b", "gone"}
	b.world.set("EDS", "shared", "b", "b:2")
	b.push()
	c.wantAck("EDS", "b=b:2")
	c.subscribe("CDS", "a", "b") // has all endpoints sent again
	c.wantAck("CDS", "b=b:1")
	c.nack(c.want("EDS", "a=a:1 b=b:2", "gone"), "goo.gle/debugstr\ncluster_name: \"b\"\n: no good")
	c.wantAck("EDS", "a=a:1", "gone") // all but what was refused
	c.quiet()
	b.world.set("EDS", "shared", "b", "b:3")
	b.push()
	c.wantAck("EDS", "b=b:3")
	c.quiet()
}

func TestReconnectWithNonce(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.request("CDS", "old", nil, nil, "")
		c.wantAck("CDS", "a=a:1 b=b:1")
	})
}

func TestDeltaReconnectSendsOnlyWhatDiffers(t *testing.T) {
	b := start(t, small())
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

	b.world.set("CDS", "shared", "b", "").set("CDS", "shared", "c", "c:1").set("CDS", "shared", "a", "a:2").
		set("EDS", "shared", "b", "")
	b.push()
	c = b.connect(xdswire.Delta, "p")
	c.reconnect("CDS", clusters)
	c.wantAck("CDS", "a=a:2 c=c:1", "b")
	// What a proxy holds it is subscribed to.
	endpoints["gone"] = "1"
	c.reconnect("EDS", endpoints, "a", "b")
	c.wantAck("EDS", "a=a:1", "b", "gone")
}

func TestChangedClusterGetsItsEndpoints(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "a=a:1 b=b:1")
		b.world.set("CDS", "shared", "a", "a:2")
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

func TestEndpointsFollowClustersAfterARefusedFirstResponse(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, newWorld().set("EDS", "shared", "a", "a:1"))
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.nack(c.want("CDS", ""), "no")
		c.subscribe("EDS", "a") // for a cluster of an earlier stream
		c.wantAck("EDS", "a=a:1")
		c.quiet()
		b.world.set("CDS", "shared", "a", "a:1")
		b.push()
		c.wantAck("CDS", "a=a:1")
		c.wantAck("EDS", "a=a:1")
	})
}

func TestClustersAskedForAfterEndpoints(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		r := c.wantAck("EDS", "a=a:1")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		if v == xdswire.SotW {
			c.ack(r) // looks like an ACK, is answered once
		}
		r = c.wantAck("EDS", "a=a:1")
		c.ack(r)
		c.quiet()
	})
}

func TestDeltaClusterRequestIsFollowedByEndpoints(t *testing.T) {
	b := start(t, small())
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
		b := start(t, small())
		c := b.connect(v, "p")
		for _, sub := range []struct{ typ, name string }{{"RDS", "r"}, {"LDS", "*"}, {"EDS", "a"}, {"CDS", "*"}} {
			c.subscribe(sub.typ, sub.name)
			c.ack(c.recv())
		}
		if v == xdswire.Delta {
			c.wantAck("EDS", "a=a:1")
		}
		c.quiet()
		b.world.set("RDS", "shared", "r", "r:2").set("LDS", "shared", "l", "l:2").
			set("EDS", "shared", "a", "a:2").set("CDS", "shared", "a", "a:2").set("CDS", "shared", "b", "")
		b.push()
		if v == xdswire.SotW {
			c.wantAck("CDS", "a=a:2")
		} else {
			c.wantAck("CDS", "a=a:2", "b")
		}
		c.wantAck("EDS", "a=a:2")
		c.wantAck("LDS", "l=l:2")
		c.wantAck("RDS", "r=r:2")
	})
}

func TestRoutesWaitForClusters(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, newWorld().set("CDS", "shared", "a", "a:1").set("RDS", "shared", "r", "r:1"))
		c := b.connect(v, "p")
		c.subscribe("RDS", "r")
		c.wantAck("RDS", "r=r:1")
		c.subscribe("CDS")
		first := c.want("CDS", "a=a:1")
		b.world.set("CDS", "shared", "a", "a:2").set("RDS", "shared", "r", "r:2")
		b.push()
		c.ack(first)
		c.wantAck("CDS", "a=a:2")
		c.wantAck("RDS", "r=r:2")
	})
}

func TestUnknownTypesAreIgnored(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
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
		b := start(t, small().set("EDS", "other", "a", "a:1").set("EDS", "other", "b", "b:other"))
		c := b.connect(v, "p")
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "a=a:1 b=b:1")
		b.world.view("p", "other")
		b.push()
		c.wantAck("EDS", "b=b:other")
		b.world.set("EDS", "shared", "a", "a:2") // no longer its view
		b.push()
		c.quiet()
		b.world.set("EDS", "other", "a", "a:3")
		b.push()
		c.wantAck("EDS", "a=a:3")
		b.eventually("the old views to go", func() bool { return b.metric("meshctl_xds_views", "") == 4 }) // of EDS and RDS, which quiet asks for
	})
}

func TestRefusedStreams(t *testing.T) {
	unauthenticated := func(_ *Config, a *Access) {
		a.Authenticate = func(context.Context) (mesh.Caller, error) { return mesh.Caller{}, errors.New("no credentials") }
	}
	forbidden := func(_ *Config, a *Access) {
		a.CheckNode = func(mesh.Caller, xdsgen.Node) error { return errors.New("not your node") }
	}
	starting := func(c *Config, _ *Access) { c.Ready = func() bool { return false } }
	tests := []struct {
		name   string
		world  *world
		node   *corev3.Node
		option benchOption
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
				var opts []benchOption
				if tt.option != nil {
					opts = append(opts, tt.option)
				}
				b := start(t, w, opts...)
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
	b := start(t, small(), func(_ *Config, a *Access) {
		a.Authenticate = func(context.Context) (mesh.Caller, error) { return who, nil }
		a.CheckNode = func(c mesh.Caller, n xdsgen.Node) error {
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
		b := start(t, small())
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
	b := start(t, small(), func(c *Config, _ *Access) { c.Limits.FirstRequest = time.Millisecond })
	if s := b.connect(xdswire.SotW, "p").status(); s.Code() != codes.DeadlineExceeded {
		t.Errorf("got %v", s)
	}
}

func TestTooManyNames(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small(), func(c *Config, _ *Access) { c.Limits.Names, c.Limits.NameBytes = 3, 100 })
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
	b := start(t, small())
	c := b.connect(xdswire.SotW, "p")
	// The send may fail by itself when the server is quick to refuse.
	_ = c.sotw.Send(&discoveryv3.DiscoveryRequest{Node: c.node, ResourceNames: []string{strings.Repeat("x", 4<<20)}})
	if s := c.status(); s.Code() != codes.ResourceExhausted {
		t.Errorf("got %v", s)
	}
}

func TestPanicEndsOneStream(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, small())
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
	b := start(t, small().view("q", "panic"))
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
			b := start(t, small())
			c := b.connect(xdswire.SotW, "p")
			c.subscribe("CDS")
			c.wantAck("CDS", "a=a:1 b=b:1")
			b.world.set("CDS", "shared", "a", how).set("CDS", "shared", "b", "b:2")
			b.push()
			c.wantAck("CDS", "a=a:1 b=b:2")
			if n := b.metric("meshctl_xds_generation_failures_total", ""); n != 1 {
				t.Errorf("%v failures counted, want 1", n)
			}
			b.world.set("CDS", "shared", "a", "a:3")
			b.push()
			c.wantAck("CDS", "a=a:3 b=b:2")
		})
	}
}

func TestHubEndsStreams(t *testing.T) {
	b := start(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("CDS")
	c.wantAck("CDS", "a=a:1 b=b:1")
	b.stop()
	if s := c.status(); s.Code() != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", s)
	}
}

// A name asked for while a response was on its way stands not in it, so its
// refusal is not for that name.
func TestNameAskedForDuringARefusedResponseIsSent(t *testing.T) {
	b := start(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("EDS", "gone")
	r := c.want("EDS", "", "gone")
	c.subscribe("EDS", "gone", "a")
	c.nack(r, "no")
	c.wantAck("EDS", "a=a:1")
	c.quiet()
}

func TestSearchGoesOnAfterARefusedRemoval(t *testing.T) {
	b := start(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("EDS", "a", "b")
	r := c.want("EDS", "a=a:1 b=b:1")
	b.world.set("EDS", "shared", "a", "")
	b.push()
	c.nack(r, "no")
	c.nack(c.want("EDS", "", "a"), "no") // the first half, which went
	c.wantAck("EDS", "b=b:1", "a")
	c.quiet()
}
