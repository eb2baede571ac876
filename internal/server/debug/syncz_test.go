package debug

import (
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestProxySyncz: each proxy has one row, with the types of all its streams. The newest stream that
// got a type decides. Proxies of the same name in two clusters are two.
func TestProxySyncz(t *testing.T) {
	t.Parallel()
	stream := func(cluster mesh.ClusterID, id string, age int, types map[string]history.TypeStatus) history.Proxy {
		node := proxy.Node{Cluster: cluster}
		node.ID.Name, node.ID.Namespace = "web", "apps"
		return history.Proxy{ID: id, Node: node, Connected: time.Unix(int64(100-age), 0), Types: types}
	}
	sent := func(sent, acked string) history.TypeStatus { return history.TypeStatus{Sent: sent, Acked: acked} }
	p := New(Config{Proxies: func() []history.Proxy {
		return []history.Proxy{
			stream("c2", "other", 5, map[string]history.TypeStatus{"CDS": sent("x", "x")}),
			stream("c1", "before a restart", 9, map[string]history.TypeStatus{"CDS": sent("1", ""), "EDS": sent("1", "1"), "RDS": sent("1", "1")}),
			stream("c1", "envoy", 2, map[string]history.TypeStatus{"CDS": sent("2", "2"), "LDS": sent("2", ""), "RDS": {}}),
			stream("c1", "agent", 1, map[string]history.TypeStatus{"NDS": sent("7", "7")}),
		}
	}})
	rows, ok := p.ProxySyncz().([]SyncStatus)
	if !ok || len(rows) != 2 || rows[0].ClusterID != "c1" || rows[1].ClusterSent != "x" {
		t.Fatalf("rows %+v", rows)
	}
	r := rows[0]
	for name, got := range map[string][2][2]string{
		"clusters":  {{r.ClusterSent, r.ClusterAcked}, {"2", "2"}},
		"listeners": {{r.ListenerSent, r.ListenerAcked}, {"2", ""}},
		"routes":    {{r.RouteSent, r.RouteAcked}, {"1", "1"}},
		"endpoints": {{r.EndpointSent, r.EndpointAcked}, {"1", "1"}},
		"names":     {{r.Resources[xdswire.NameTableType].Sent, r.Resources[xdswire.ClusterType].Sent}, {"7", "2"}},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %q, want %q", name, got[0], got[1])
		}
	}
	if r.Proxy != "web.apps" || r.Connection != "agent" {
		t.Errorf("row %+v", r)
	}
}
