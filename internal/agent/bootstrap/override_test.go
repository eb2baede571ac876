package bootstrap

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
)

// TestOverride: parts of a bootstrap are merged into the result: messages field by field, lists
// by appending. What Envoy would refuse is an error.
func TestOverride(t *testing.T) {
	c := Config{
		Node: mesh.NodeID{
			Type: mesh.Sidecar, IP: netip.MustParseAddr("10.1.0.11"), Name: "a", Namespace: "b", Domain: "b.svc.cluster.local",
		},
		Listen: netip.MustParseAddr("0.0.0.0"), Local: netip.MustParseAddr("127.0.0.1"),
		AdminPort: 15000, StatusPort: 15020, ReadyPort: 15021, StatsPort: 15090,
		SDSSocket: "sds/socket", XDSSocket: "XDS",
		Override: []byte("stats_flush_interval: 7s\nnode: {cluster: mine}\nstatic_resources:\n  clusters: [{name: extra, connect_timeout: 1s}]\n"),
	}
	data, err := Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		StatsFlushInterval string `json:"stats_flush_interval"`
		Node               struct{ ID, Cluster string }
		StaticResources    struct{ Clusters []struct{ Name string } } `json:"static_resources"`
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	clusters := got.StaticResources.Clusters
	if got.StatsFlushInterval != "7s" || got.Node.Cluster != "mine" || got.Node.ID == "" || len(clusters) != 4 || clusters[3].Name != "extra" {
		t.Errorf("got %+v", got)
	}
	for override, want := range map[string]string{
		"a: [":     "ISTIO_BOOTSTRAP_OVERRIDE",
		"nodes: 1": "no bootstrap of Envoy",
		"static_resources: {clusters: [{name: ''}]}": "clusters[3].name",
	} {
		c.Override = []byte(override)
		if _, err := Marshal(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", override, err, want)
		}
	}
}
