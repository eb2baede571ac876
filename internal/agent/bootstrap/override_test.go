package bootstrap

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
)

// TestOverride: parts of a bootstrap are merged into the result: messages field by field, lists
// by appending. What Envoy would refuse is an error.
func TestOverride(t *testing.T) {
	c := exampleConfig()
	c.Override = []byte("stats_flush_interval: 7s\nnode: {cluster: mine}\nstatic_resources:\n  clusters: [{name: extra, connect_timeout: 1s}]\n")
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

func exampleConfig() Config {
	return Config{
		Node: mesh.NodeID{
			Type: mesh.Sidecar, IP: netip.MustParseAddr("10.1.0.11"), Name: "a", Namespace: "b", Domain: "b.svc.cluster.local",
		},
		Listen: netip.MustParseAddr("0.0.0.0"), Local: netip.MustParseAddr("127.0.0.1"),
		AdminPort: 15000, StatusPort: 15020, ReadyPort: 15021, StatsPort: 15090,
		SDSSocket: "sds/socket", XDSSocket: "XDS",
	}
}

// TestPatch: the patches of the control plane are merged before the override. They cannot change
// what the agent needs, and a violation of the rules of Envoy's API is an error.
func TestPatch(t *testing.T) {
	marshal := func(patch, override string) ([]byte, error) {
		b := &bootstrapv3.Bootstrap{}
		if err := protojson.Unmarshal([]byte(patch), b); err != nil {
			t.Fatal(err)
		}
		encoded, err := proto.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		c := exampleConfig()
		c.Patch, c.Override = encoded, []byte(override)
		return Marshal(c)
	}
	data, err := marshal(`{"stats_flush_interval": "7s", "admin": {"ignore_global_conn_limit": true}, "cluster_manager": {"local_cluster_name": "patched"},
		"static_resources": {"clusters": [{"name": "patched"}]}}`, "stats_flush_interval: 8s")
	if err != nil {
		t.Fatal(err)
	}
	got := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(data, got); err != nil {
		t.Fatal(err)
	}
	clusters := got.GetStaticResources().GetClusters()
	if got.GetStatsFlushInterval().AsDuration() != 8*time.Second || got.GetClusterManager().GetLocalClusterName() != "patched" || len(clusters) != 4 || clusters[3].GetName() != "patched" {
		t.Errorf("got %s", data)
	}
	if admin := got.GetAdmin(); !admin.GetIgnoreGlobalConnLimit() || admin.GetProfilePath() != "/dev/null" {
		t.Errorf("admin: %v", admin)
	}
	for patch, want := range map[string]string{
		`{"node": {"id": "other"}}`:                                  "node belongs to the agent",
		`{"dynamic_resources": {"ads_config": {}}}`:                  "dynamic_resources belongs to the agent",
		`{"admin": {"address": {"pipe": {"path": "/tmp/admin"}}}}`:   "admin.address belongs to the agent",
		`{"static_resources": {"clusters": [{"name": "sds-grpc"}]}}`: `clusters[0].name "sds-grpc" is a name`,
		`{"static_resources": {"clusters": [{"name": ""}]}}`:         "clusters[3].name of the bootstrap",
		`{"overload_manager": {"actions": [{"name": "a"}]}}`:         "overload_manager.actions[0].triggers of the bootstrap",
	} {
		if _, err := marshal(patch, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", patch, err, want)
		}
	}
}
