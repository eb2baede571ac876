package xds

import (
	"context"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestFlightRecord follows a change from its cause to the answers of a proxy.
func TestFlightRecord(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := start(t, newWorld().set("EDS", "shared", "a", "a:1"))
		c := b.connect(v, "p")
		c.subscribe("EDS", "a")
		c.wantAck("EDS", "a=a:1")

		cause := snapshot.Cause{
			Key:   snapshot.Key{Kind: snapshot.KindEndpointSlice, Cluster: "c1", Namespace: "ns", Name: "a-1"},
			Place: snapshot.Place{File: "a.yaml", Line: 9},
		}
		b.world.changes.Causes, b.world.changes.Events, b.world.changes.Since = []snapshot.Cause{cause}, 3, time.Unix(5, 0)
		b.world.set("EDS", "shared", "a", "a:2")
		b.push()
		c.nack(c.want("EDS", "a=a:2"), "a is no good")
		b.eventually("NACK", func() bool { return len(b.hub.Flight().NACKs()) == 1 })

		h := b.hub.Flight().History("p.ns")
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
		line := b.hub.Flight().Timeline()
		if last := line[len(line)-1]; last.Snapshot != change.Snapshot || last.Bytes != int64(second.Bytes) {
			t.Errorf("timeline ends with %+v", last)
		}
		c.cancel()
		b.eventually("end", func() bool { return !b.hub.Flight().History("p.ns")[0].Ended.IsZero() })
	})
}

func TestViews(t *testing.T) {
	b := start(t, newWorld().set("EDS", "shared", "a", "a:1").set("EDS", "shared", "b", "b:1").set("EDS", "p", "own", "own:1"))
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
	if len(views) != 8 {
		t.Errorf("%d views, want 8: %+v", len(views), views)
	}
	b.stop()
	<-b.hub.done
	if _, err := b.hub.Views(context.Background()); err == nil {
		t.Error("a hub that ended tells its views")
	}
}
