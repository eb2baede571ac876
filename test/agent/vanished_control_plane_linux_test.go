package agent

import (
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/test/harness"
)

// inOwnNetwork runs the test again in a network namespace of its own, and returns true there.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	if !harness.RunsInOwnNetwork(t, "lost packets", []string{"ss", "nft"}) {
		return false
	}
	if err := harness.LoopbackUp(); err != nil {
		t.Fatal(err)
	}
	return true
}

// numbered is a control plane that counts its streams, and names the number in the cluster.
type numbered struct {
	*inbound
	streams atomic.Int64
}

// DeltaAggregatedResources sends the cluster and the listener.
func (n *numbered) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	cluster, ok := proto.Clone(n.cluster).(*clusterv3.Cluster)
	if !ok {
		panic("a copy has another type")
	}
	if n.streams.Add(1) > 1 {
		cluster.AltStatName = "later"
	}
	return (&inbound{cluster: cluster, listener: n.listener}).DeltaAggregatedResources(stream)
}

// TestVanishedControlPlane: the host of the control plane vanishes, so that the end of the connection
// never arrives. The keepalive detects it in 10 seconds, or in 40 if nothing was sent meanwhile, and
// the relay connects again. The stream of Envoy stays open and receives the new configuration.
func TestVanishedControlPlane(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	ca := certstest.NewIstioCA(t)
	plane := &numbered{inbound: newInbound(t, application(t).Listener.Addr())}
	ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, plane) })
	a := start(t, flagsFor(t, ca, harness.ShortDir(t)), "SECRET_TTL=1h") // no connection for a renewal
	a.waitReady(t)

	// All packets of the present connections are lost. Those of new connections arrive.
	rules := "table inet lost { chain in { type filter hook input priority 0;"
	connections, err := exec.CommandContext(t.Context(), "ss", "-Htn", "state", "established", "dst", ca.Addr).Output()
	if err != nil {
		t.Fatal(err)
	}
	if len(connections) == 0 {
		t.Fatal("the agent has no connection to the control plane")
	}
	for line := range strings.Lines(string(connections)) {
		_, port, err := net.SplitHostPort(strings.Fields(line)[2])
		if err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		rules += " tcp sport " + port + " drop; tcp dport " + port + " drop;"
	}
	nft := exec.CommandContext(t.Context(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules + " }; };")
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	a.wait(t, "a configuration of the second stream", func() bool {
		return strings.Contains(a.get(t, 15000, "/config_dump?resource=dynamic_active_clusters"), `"later"`)
	})
	if got := a.get(t, 15000, `/stats?filter=^cluster\.xds-grpc;?\.upstream_(cx|rq)_total$`); strings.Count(got, "_total: 1\n") != 2 {
		t.Errorf("Envoy opened more than one stream: %s", got)
	}
	if got := a.get(t, 15020, "/metrics"); !strings.Contains(got, `istio_agent_istiod_connection_terminations{type="error"} 1`+"\n") {
		t.Errorf("the relay did not lose its stream once: %s", got)
	}
	if n := plane.streams.Load(); n != 2 {
		t.Errorf("the control plane had %d streams, want 2", n)
	}
}
