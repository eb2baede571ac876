package xds

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestNamesInNACK reads error texts of Envoy 1.40.0, some of them shortened.
func TestNamesInNACK(t *testing.T) {
	names := []string{"80", "8080", "e1", "e2", "l2", "0.0.0.0_80", "none", "static.bad", "good", "bad", "outbound|80||no.eds.svc.cluster.local"}
	slices.Sort(names)
	for _, tc := range []struct{ text, want string }{
		{
			"Error adding/updating cluster(s) outbound|80||no.eds.svc.cluster.local: cannot create an EDS cluster without an EDS config, " +
				"none: Didn't find a registered cluster factory implementation for name: 'nope: really, bad', static.bad: malformed IP address: " +
				"not.an.ip. Consider setting resolver_name or setting cluster type to 'STRICT_DNS' or 'LOGICAL_DNS'",
			"none outbound|80||no.eds.svc.cluster.local static.bad",
		},
		{
			"Error adding/updating listener(s) 0.0.0.0_80: error adding listener '127.0.0.1:0': no filter chains specified\nl2: malformed IP address: nope\n",
			"0.0.0.0_80 l2",
		},
		{"goo.gle/debugproto   \nname: \"l2\"\naddress {\n  socket_address {\n    address: \"127.0.0.1\"\n    port_value: 99999\n  }\n}\n: " +
			"Proto constraint validation failed (ListenerValidationError.Address: embedded message failed validation)", "l2"},
		{"goo.gle/debugstr  \nname: \"80\"\nvirtual_hosts {\n  name: \"8080\"\n}\n: Proto constraint validation failed", "80"},
		{"goo.gle/debugproto  \ncluster_name: \"e2\"\nendpoints {\n  priority: 200\n}\n: Proto constraint validation failed", "e2"},
		{"Only unique values for domains are permitted. Duplicate entry of domain x.com in route 80", "80"},
		{"Only a single wildcard domain is permitted in route 8080", "8080"},
		{"Unexpected EDS cluster (expecting e1): e9", "e1"},
		{"malformed IP address: nope. Consider setting resolver_name or setting cluster type to 'STRICT_DNS' or 'LOGICAL_DNS'", ""},
		{"Invalid duration: Expected positive duration: goo.gle/debugonly  \nseconds: -1\n", ""},
		{"Unable to unpack as envoy.config.cluster.v3.Cluster: goo.gle/debugstr    \ntype_url: \"x\"\nvalue: \"\\377\"\n", ""},
		{"", ""},
	} {
		got := namesInNACK(tc.text, func(n string) bool { return slices.Contains(names, n) })
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%q\n got %v\nwant %s", tc.text, got, tc.want)
		}
	}
}

func FuzzNamesInNACK(f *testing.F) {
	f.Add("Error adding/updating cluster(s) a: x, b: y", "a")
	f.Add("goo.gle/debugstr\nname: \"a\"\n", "a")
	f.Add("x in route a", "a")
	f.Fuzz(func(t *testing.T, text, name string) {
		for _, got := range namesInNACK(text, func(n string) bool { return n == name }) {
			if got != name || !strings.Contains(text, name) {
				t.Errorf("%q is blamed", got)
			}
		}
	})
}

// TestQuarantinedResourceIsNotSentAgain: A proxy refuses a cluster. It gets all later changes, and
// other proxies are not affected.
func TestQuarantinedResourceIsNotSentAgain(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c, other := b.connect(v, "p"), b.connect(v, "q")
		for _, c := range []*client{c, other} {
			c.subscribe("CDS")
			c.wantAck("CDS", "a=a:1 b=b:1")
		}
		b.mesh.set("CDS", "shared", "a", "a:bad").set("CDS", "shared", "b", "b:2")
		b.push()
		c.nack(c.want("CDS", "a=a:bad b=b:2"), "Error adding/updating cluster(s) a: no good")
		other.wantAck("CDS", "a=a:bad b=b:2")
		list := func(sotw, delta string) string {
			if v == xdswire.SotW {
				return sotw
			}
			return delta
		}
		c.wantAck("CDS", list("a=a:1 b=b:2", "b=b:2")) // resources of the refused response that the proxy may lack
		c.quiet()
		b.eventually("gauge", func() bool { return b.metric("meshctl_xds_refused_resources", "CDS") == 1 })
		r := b.hub.NACKs().Refused
		if len(r) != 1 || r[0].Resource != "a" || r[0].Type != "CDS" || r[0].Found != "error text" || !slices.Equal(r[0].Streams, []string{"p.ns-1"}) {
			t.Errorf("withheld %+v", r)
		}
		b.mesh.set("CDS", "shared", "b", "b:3").set("CDS", "shared", "c", "c:1")
		b.push()
		c.wantAck("CDS", list("a=a:1 b=b:3 c=c:1", "b=b:3 c=c:1"))
		other.wantAck("CDS", list("a=a:bad b=b:3 c=c:1", "b=b:3 c=c:1"))
		// A new proxy gets everything: the quarantine is per proxy.
		fresh := b.connect(v, "r")
		fresh.subscribe("CDS")
		fresh.wantAck("CDS", "a=a:bad b=b:3 c=c:1")
		b.mesh.set("CDS", "shared", "a", "a:4")
		b.push()
		c.wantAck("CDS", list("a=a:4 b=b:3 c=c:1", "a=a:4"))
		c.quiet()
		b.eventually("gauge", func() bool { return b.metric("meshctl_xds_refused_resources", "CDS") == 0 })
	})
}

// TestRefusedResourceIsFoundByHalving: A NACK that names no resource starts a search.
func TestRefusedResourceIsFoundByHalving(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newTestMesh()
		for i := range 40 {
			name := fmt.Sprintf("c%02d", i)
			content := name + ":1"
			if i == 7 || i == 31 {
				content = name + ":bad"
			}
			w.set("CDS", "shared", name, content)
		}
		b := startServer(t, w)
		c := b.connect(v, "p")
		c.subscribe("CDS")
		held := make(map[string]string)
		for responses := 0; len(b.hub.NACKs().Refused) < 2 || len(held) < 38; responses++ {
			if responses > 40 {
				t.Fatalf("%d responses, found %+v, %d held", responses, b.hub.NACKs().Refused, len(held))
			}
			r := c.recv()
			bad := false
			for _, content := range r.resources {
				bad = bad || strings.HasSuffix(content, "bad")
			}
			if bad {
				c.nack(r, "it is no good")
				continue
			}
			maps.Copy(held, r.resources)
			c.ack(r)
			if len(held) == 38 {
				b.eventually("the last group", func() bool { return len(b.hub.NACKs().Refused) == 2 || len(c.in) > 0 })
			}
		}
		r := b.hub.NACKs().Refused
		if r[0].Resource != "c07" || r[1].Resource != "c31" {
			t.Errorf("found %+v", r)
		}
		c.cancel()
		b.eventually("gauge", func() bool { return b.metric("meshctl_xds_refused_resources", "CDS") == 0 })
	})
}

// TestRefusalOfEverything: A proxy refuses everything until nothing is left. It
// gets no empty list then, and continues to get changes.
func TestRefusalOfEverything(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newTestMesh()
		for i := range 500 {
			w.set("CDS", "shared", fmt.Sprintf("c%03d", i), fmt.Sprintf("c%03d:1", i))
		}
		b := startServer(t, w)
		c := b.connect(v, "p")
		c.subscribe("CDS")
		responses := 0
		for ; len(b.hub.NACKs().Refused) < 500; responses++ {
			if responses > 2*maxTries {
				t.Fatalf("%d responses and no end", responses)
			}
			r := c.recv()
			if len(r.resources) == 0 {
				t.Fatalf("response %d is empty", responses)
			}
			c.nack(r, "no")
			want := uint64(responses + 1)
			b.eventually("NACK taken", func() bool { return b.metric("meshctl_xds_nacks_total", "CDS") == float64(want) })
			b.eventually("next", func() bool { return len(c.in) > 0 || len(b.hub.NACKs().Refused) == 500 })
		}
		c.quiet()
		b.mesh.set("CDS", "shared", "c007", "c007:2")
		b.push()
		c.wantAck("CDS", "c007=c007:2")
		c.quiet()
	})
}

// TestOnlyRefusedResourcesRemain: All resources disappear except one that the proxy refused,
// while it has accepted nothing. An empty list would let it start with nothing.
func TestOnlyRefusedResourcesRemain(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.SotW, "p")
	c.subscribe("CDS")
	c.nack(c.want("CDS", "a=a:1 b=b:1"), "no")
	r := c.want("CDS", "a=a:1")
	b.mesh.set("CDS", "shared", "b", "")
	b.push()
	c.nack(r, "no")
	c.quiet()
	b.mesh.set("CDS", "shared", "c", "c:1")
	b.push()
	c.wantAck("CDS", "c=c:1")
	// Now it has a resource, and gets its removal.
	b.mesh.set("CDS", "shared", "c", "")
	b.push()
	c.wantAck("CDS", "")
}

// TestRefusedResourceDisappears: A proxy has refused all resources, one by one, and one of
// them disappears. The proxy, which has accepted nothing, gets no empty list.
func TestRefusedResourceDisappears(t *testing.T) {
	b := startServer(t, small())
	c := b.connect(xdswire.SotW, "p")
	c.subscribe("CDS")
	c.nack(c.want("CDS", "a=a:1 b=b:1"), "no")
	c.nack(c.want("CDS", "a=a:1"), "no")
	c.nack(c.want("CDS", "b=b:1"), "no")
	b.mesh.set("CDS", "shared", "a", "")
	b.push()
	c.quiet()
	b.mesh.set("CDS", "shared", "c", "c:1")
	b.push()
	c.wantAck("CDS", "c=c:1")
}

// TestRefusedGaugeEndsAtZero: Resources refused by proxies that disconnect no longer
// count.
func TestRefusedGaugeEndsAtZero(t *testing.T) {
	b := startServer(t, small())
	for i := range 100 {
		c := b.connect(xdswire.Delta, fmt.Sprint("p", i))
		c.subscribe("CDS")
		c.nack(c.recv(), "Error adding/updating cluster(s) a: no")
		c.cancel()
	}
	b.eventually("end of all", func() bool { return len(b.hub.Proxies()) == 0 })
	b.eventually("nothing refused", func() bool { return b.metric("meshctl_xds_refused_resources", "CDS") == 0 })
}

// TestStaleNACK: A NACK of an earlier response does not affect the last one.
func TestStaleNACK(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		b.eventually("ACK", func() bool { return b.hub.Proxies()[0].Types["CDS"].Acked != "" })
		c.request("CDS", "old", nil, nil, "old complaint")
		b.eventually("NACK", func() bool { return b.metric("meshctl_xds_nacks_total", "CDS") == 1 })
		c.quiet()
		if s := b.hub.Proxies()[0].Types["CDS"]; s.NACK != nil || s.Acked != s.Sent {
			t.Errorf("status %+v after a NACK of nothing", s)
		}
	})
}

// TestStatusFollowsAnswers: The status of a type shows the time of the last answer, and
// quarantined resources.
func TestStatusFollowsAnswers(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		c := b.connect(v, "p")
		c.subscribe("CDS")
		first := c.recv()
		status := func() history.TypeStatus { return b.hub.Proxies()[0].Types["CDS"] }
		if s := status(); !s.Awaited || s.SentAt.IsZero() || !s.AnsweredAt.IsZero() || s.Sent == "" || s.Acked != "" {
			t.Errorf("before the answer: %+v", s)
		}
		c.ack(first)
		b.eventually("ACK", func() bool { return !status().Awaited })
		if s := status(); s.Acked != s.Sent || s.AnsweredAt.Before(s.SentAt) || s.NACK != nil || len(s.Quarantined) != 0 {
			t.Errorf("after the ACK: %+v", s)
		}
		b.mesh.set("CDS", "shared", "a", "a:2")
		b.push()
		c.nack(c.recv(), "Error adding/updating cluster(s) a: no")
		b.eventually("NACK", func() bool { return len(status().Quarantined) == 1 })
		if s := status(); s.Quarantined[0].Resource != "a" || s.Acked == "" {
			t.Errorf("after the NACK: %+v", s)
		}
	})
}
