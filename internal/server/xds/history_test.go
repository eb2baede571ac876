package xds

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestHistory: The history follows a change from its cause to the answers of a proxy.
func TestHistory(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, newTestMesh().set("EDS", "shared", "a", "a:1"))
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		c.wantAck("EDS", "a=a:1")

		cause := snapshot.Cause{
			Key:   snapshot.Key{Kind: snapshot.KindEndpointSlice, Cluster: "c1", Namespace: "ns", Name: "a-1"},
			Place: snapshot.Place{File: "a.yaml", Line: 9},
		}
		b.mesh.changes.Causes, b.mesh.changes.Events, b.mesh.changes.Since = []snapshot.Cause{cause}, 3, time.Unix(5, 0)
		b.mesh.set("EDS", "shared", "a", "a:2")
		b.push()
		c.nack(c.want("EDS", "a=a:2"), "a is no good")
		b.eventually("NACK", func() bool { return len(b.hub.History().NACKs()) == 1 })

		h := b.hub.History().History("p.ns")
		if len(h) != 1 || len(h[0].Pushes) != 2 || h[0].Variant != v.String() {
			t.Fatalf("history %+v", h)
		}
		first, second := h[0].Pushes[0], h[0].Pushes[1]
		if first.Why != "request" || first.Answer != "ACK" || first.Change != nil || first.Resources != 1 || first.Bytes == 0 {
			t.Errorf("first push %+v", first)
		}
		if second.Why != "change" || second.Answer != "NACK" || second.Error != "a is no good" {
			t.Errorf("second push %+v", second)
		}
		change := second.Change
		if change == nil || change.Events != 3 || len(change.Causes) != 1 || change.Causes[0].Place != "a.yaml:9" ||
			!change.Arrived.Equal(time.Unix(5, 0)) || change.Pushes != 1 || change.NACKs != 1 || change.Resources != 1 {
			t.Errorf("change %+v", change)
		}
		line := b.hub.History().Timeline()
		if last := line[len(line)-1]; last.Snapshot != change.Snapshot || last.Bytes != int64(second.Bytes) {
			t.Errorf("timeline ends with %+v", last)
		}
		c.cancel()
		b.eventually("end", func() bool { return !b.hub.History().History("p.ns")[0].Ended.IsZero() })
	})
}

// TestHistoryOfEveryType: A change appears under its types, including types that always
// send a full list.
func TestHistoryOfEveryType(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		for _, typ := range []string{"CDS", "EDS", "LDS", "RDS"} {
			b := startServer(t, newTestMesh().set(typ, "shared", "a", "a:1"))
			c := b.connect(v, "p")
			if typ == "CDS" || typ == "LDS" {
				c.subscribe(typ)
			} else {
				c.subscribe(typ, "a")
			}
			c.wantAck(typ, "a=a:1")
			b.mesh.changes.Causes = []snapshot.Cause{{}}
			b.mesh.set(typ, "shared", "a", "a:2")
			b.push()
			c.wantAck(typ, "a=a:2")
			b.eventually("ACK", func() bool {
				line := b.hub.History().Timeline()
				return line[len(line)-1].ACKs == 1
			})
			pushes := b.hub.History().History("p.ns")[0].Pushes
			if last := pushes[len(pushes)-1]; last.Why != "change" || last.Change == nil || last.Change.Pushes != 1 {
				t.Errorf("%s: %+v", typ, last)
			}
			b.stop()
		}
	})
}

// TestSentMeansWritten: A response counts as written when the connection has taken it,
// not when gRPC has.
func TestSentMeansWritten(t *testing.T) {
	b := startServer(t, newTestMesh().set("CDS", "shared", "a", "a:1"), func(c *Config, _ *Access) { c.Now = time.Now })
	deaf := make(chan struct{})
	c := b.connectOn(b.dialStalling(deaf), xdswire.SotW, "p")
	go c.receive()
	c.subscribe("CDS")
	c.wantAck("CDS", "a=a:1")
	close(deaf)
	b.mesh.set("CDS", "shared", "a", "a:"+strings.Repeat("x", 32<<20))
	b.push()
	last := func() history.Push {
		pushes := b.hub.History().History("p.ns")[0].Pushes
		return pushes[len(pushes)-1]
	}
	b.eventually("push", func() bool { return last().Bytes > 32<<20 })
	if p := last(); !p.Written.IsZero() {
		t.Errorf("written after %v, though the peer reads nothing", p.Written.Sub(p.Sent))
	}
}

func TestViews(t *testing.T) {
	b := startServer(t, newTestMesh().set("EDS", "shared", "a", "a:1").set("EDS", "shared", "b", "b:1").set("EDS", "p", "own", "own:1"))
	for _, name := range []string{"p", "q"} {
		c := b.connect(xdswire.Delta, name)
		c.subscribe("EDS", "a", "b")
		c.wantAck("EDS", "a=a:1 b=b:1")
	}
	views, err := b.hub.Views(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]LiveView)
	for _, v := range views {
		found[v.Type+" "+v.Scope] = v
	}
	if v := found["EDS shared"]; v.Streams != 2 || v.Views != 1 || v.Resources != 2 || v.Bytes == 0 || v.Version == "" {
		t.Errorf("shared %+v", v)
	}
	if v := found["EDS own"]; v.Streams != 2 || v.Views != 2 || v.Resources != 1 {
		t.Errorf("own %+v", v)
	}
	if len(views) != 2 {
		t.Errorf("%d views, want those of EDS: %+v", len(views), views)
	}
	b.stop()
	<-b.hub.done
	if _, err := b.hub.Views(context.Background()); err == nil {
		t.Error("a hub that ended returns its views")
	}
}
