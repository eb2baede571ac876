package xds

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/xdswire"
)

func TestNackKeepsLastGood(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("EDS", "a", "b")
		good := c.wantAck("EDS", "a=a:1 b=b:1")
		b.mesh.set("EDS", "shared", "a", "a:bad")
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
		// The next change sends a again as it was acknowledged, because the proxy may
		// have applied the refused version.
		b.mesh.set("EDS", "shared", "a", "a:1").set("EDS", "shared", "b", "b:2")
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
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		b.mesh.set("CDS", "shared", "a", "").set("CDS", "shared", "x", "x:bad")
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
		b.mesh.set("CDS", "shared", "a", "a:1").set("CDS", "shared", "x", "")
		b.push()
		if v == xdswire.SotW {
			c.wantAck("CDS", "a=a:1 b=b:1")
		} else {
			c.wantAck("CDS", "a=a:1", "x") // the proxy may have removed a and applied x
		}
		c.quiet()
	})
}

func TestSubscribeAfterNack(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small().set("EDS", "shared", "c", "c:1"))
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		c.wantAck("EDS", "a=a:1")
		b.mesh.set("EDS", "shared", "a", "a:bad")
		b.push()
		c.nack(c.want("EDS", "a=a:bad"), "no good")
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "b=b:1") // without the refused resource
		b.mesh.set("EDS", "shared", "c", "c:2")
		b.push()
		c.quiet() // c is not subscribed, and the refused a is not sent again
	})
}

func TestNackOfFirstResponse(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.nack(c.want("CDS", "a=a:1 b=b:1"), "no good")
		c.wantAck("CDS", "a=a:1") // the search for the refused resource
		if v == xdswire.SotW {
			c.nack(c.want("CDS", "a=a:1 b=b:1"), "no good")
		} else {
			c.nack(c.want("CDS", "b=b:1"), "no good")
		}
		c.quiet()
		b.mesh.set("CDS", "shared", "b", "")
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
	b := startServer(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("CDS", "a")
	c.wantAck("CDS", "a=a:1")
	c.reconnect("EDS", map[string]string{"gone": "1"}, "a", "b")
	c.nack(c.want("EDS", "a=a:1 b=b:1", "gone"), "no good")
	c.wantAck("EDS", "a=a:1", "gone")
	c.nack(c.want("EDS", "b=b:1"), "no good")
	c.names["EDS"] = []string{"a", "b", "gone"}
	b.mesh.set("EDS", "shared", "b", "b:2")
	b.push()
	c.wantAck("EDS", "b=b:2")
	c.subscribe("CDS", "a", "b") // makes all endpoints due
	c.wantAck("CDS", "b=b:1")
	c.nack(c.want("EDS", "a=a:1 b=b:2", "gone"), "goo.gle/debugstr\ncluster_name: \"b\"\n: no good")
	c.wantAck("EDS", "a=a:1", "gone") // all but the refused one
	c.quiet()
	b.mesh.set("EDS", "shared", "b", "b:3")
	b.push()
	c.wantAck("EDS", "b=b:3")
	c.quiet()
}

func TestNoncesAndNacks(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		first := c.want("CDS", "a=a:1 b=b:1")
		c.request("LDS", "never sent", nil, nil, "") // starts the type nevertheless
		lds := c.recv()
		c.request("CDS", lds.nonce+"0", nil, nil, "") // neither ACK nor NACK
		c.ack(lds)
		c.ack(first)
		c.quiet()
		b.mesh.set("CDS", "shared", "a", "a:2")
		b.push()
		refused := c.recv()
		for range 200 { // a loop of NACKs gets no answer
			c.nack(refused, "no")
		}
		c.quiet()
		b.mesh.set("CDS", "shared", "a", "a:3")
		b.push()
		if r := c.recv(); r.typ != "CDS" || r.resources["a"] != "a:3" {
			t.Errorf("after a loop of NACKs a later change is sent as %v", r)
		}
	})
}

// TestNameRequestedDuringRefusedResponse: A response in flight does not contain a
// name requested meanwhile, so its NACK does not concern that name.
func TestNameRequestedDuringRefusedResponse(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("EDS", "gone")
	r := c.want("EDS", "", "gone")
	c.subscribe("EDS", "gone", "a")
	c.nack(r, "no")
	c.wantAck("EDS", "a=a:1")
	c.quiet()
}

func TestSearchContinuesAfterRefusedRemoval(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("EDS", "a", "b")
	r := c.want("EDS", "a=a:1 b=b:1")
	b.mesh.set("EDS", "shared", "a", "")
	b.push()
	c.nack(r, "no")
	c.nack(c.want("EDS", "", "a"), "no") // the first half, which was removed
	c.wantAck("EDS", "b=b:1", "a")
	c.quiet()
}

func TestEndpointsFollowClustersAfterRefusedFirstResponse(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, newTestMesh().set("EDS", "shared", "a", "a:1"))
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.nack(c.want("CDS", ""), "no")
		c.subscribe("EDS", "a") // for a cluster of an earlier stream
		c.wantAck("EDS", "a=a:1")
		c.quiet()
		b.mesh.set("CDS", "shared", "a", "a:1")
		b.push()
		c.wantAck("CDS", "a=a:1")
		c.wantAck("EDS", "a=a:1")
	})
}
