package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/demo"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	_ "github.com/meshctl/meshctl/internal/xdswire/protos"
)

// names are the names of resources by type URL.
type names map[string][]string

func (n names) add(typeURL, name string) { n[typeURL] = append(n[typeURL], name) }

func (n names) sorted() names {
	for _, list := range n {
		slices.Sort(list)
	}
	return n
}

// everythingAccepted checks that each Envoy has the resources that its
// control plane sends to a proxy like it, all of them active, and that none
// was refused.
func everythingAccepted(t *testing.T, m *demo.Mesh) {
	for _, p := range m.Proxies() {
		t.Run(p.Name, func(t *testing.T) {
			node, _, _ := dumpOf(t, p.Admin)
			want := sentTo(t, p.ControlPlane, node)
			for _, kind := range []string{xdswire.ClusterType, xdswire.ListenerType} {
				if len(want[kind]) == 0 && !strings.Contains(p.Name, "helloworld") {
					t.Errorf("the control plane sends no %s", kind)
				}
			}
			holds(t, p.Admin, want)
			comparedAsSent(t, p, node)
			refusedNothing(t, p.Admin)
			t.Logf("%d clusters, %d endpoints, %d listeners, %d routes", len(want[xdswire.ClusterType]),
				len(want[xdswire.EndpointType]), len(want[xdswire.ListenerType]), len(want[xdswire.RouteType]))
		})
	}
}

// comparedAsSent checks that meshctl ps finds no difference between the sent resources and
// the resources that the proxy holds, byte by byte of both dumps.
func comparedAsSent(t *testing.T, p demo.Proxy, node *corev3.Node) {
	t.Helper()
	id, err := mesh.ParseNodeID(node.GetId())
	if err != nil {
		t.Fatal(err)
	}
	server, _, err := net.SplitHostPort(p.ControlPlane)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "what is held is what was sent", func() error {
		out, err := exec.Command(meshctl, "ps", id.ProxyID(), "--server", server+":8080", "--admin", p.Admin).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if strings.Count(string(out), " Match") != 3 {
			return fmt.Errorf("not all are told to match: %s", out)
		}
		return nil
	})
}

func adminGet(t *testing.T, admin, path string) string {
	t.Helper()
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// holds waits until an Envoy has exactly the wanted resources, all of them active.
func holds(t *testing.T, admin string, want names) {
	t.Helper()
	eventually(t, "Envoy has what was sent", func() error {
		_, got, faults := dumpOf(t, admin)
		if diff := gocmp.Diff(want, got); diff != "" {
			faults = append(faults, "names (-sent +config_dump):\n"+diff)
		}
		if len(faults) > 0 {
			return errors.New(strings.Join(faults, "\n"))
		}
		return nil
	})
}

// refusedNothing checks that an Envoy counts no refused and no late resources.
func refusedNothing(t *testing.T, admin string) {
	t.Helper()
	for line := range strings.SplitSeq(strings.TrimSpace(adminGet(t, admin, "/stats?filter=update_rejected|init_fetch_timeout")), "\n") {
		if !strings.HasSuffix(line, ": 0") {
			t.Errorf("Envoy counts %s", line)
		}
	}
}

// dumpOf returns an Envoy's node, the names of its active dynamic resources, and those
// that are warming, draining or were refused.
func dumpOf(t *testing.T, admin string) (_ *corev3.Node, _ names, faults []string) {
	t.Helper()
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	accepted := func(r interface {
		GetErrorState() *adminv3.UpdateFailureState
	},
	) {
		if state := r.GetErrorState(); state != nil {
			fault("a resource was refused: %s", state.GetDetails())
		}
	}
	var dump adminv3.ConfigDump
	if err := protojson.Unmarshal([]byte(adminGet(t, admin, "/config_dump?include_eds")), &dump); err != nil {
		t.Fatal(err)
	}
	var node *corev3.Node
	got, discovered, assignments := names{}, map[string]bool{}, []string{}
	for _, part := range dump.GetConfigs() {
		message, err := part.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		switch part := message.(type) {
		case *adminv3.BootstrapConfigDump:
			node = part.GetBootstrap().GetNode()
		case *adminv3.ClustersConfigDump:
			for _, c := range part.GetDynamicWarmingClusters() {
				fault("a cluster is warming: %v", c)
			}
			for _, c := range part.GetDynamicActiveClusters() {
				accepted(c)
				cluster := unpack(t, c.GetCluster(), &clusterv3.Cluster{})
				got.add(xdswire.ClusterType, cluster.GetName())
				if cluster.GetType() == clusterv3.Cluster_EDS {
					discovered[assignmentName(cluster)] = true
				}
			}
		case *adminv3.ListenersConfigDump:
			for _, l := range part.GetDynamicListeners() {
				accepted(l)
				switch {
				case l.GetActiveState() != nil && l.GetWarmingState() == nil:
				case l.GetWarmingState() == nil && l.GetDrainingState() != nil:
					fault("listener %s%s", l.GetName(), isDraining)
					continue
				default:
					fault("listener %s is not active", l.GetName())
				}
				got.add(xdswire.ListenerType, l.GetName())
			}
		case *adminv3.RoutesConfigDump:
			for _, r := range part.GetDynamicRouteConfigs() {
				accepted(r)
				got.add(xdswire.RouteType, unpack(t, r.GetRouteConfig(), &routev3.RouteConfiguration{}).GetName())
			}
		case *adminv3.EndpointsConfigDump:
			for _, e := range part.GetDynamicEndpointConfigs() {
				accepted(e)
				assignments = append(assignments, unpack(t, e.GetEndpointConfig(), &endpointv3.ClusterLoadAssignment{}).GetClusterName())
			}
		case *adminv3.SecretsConfigDump:
			for _, s := range part.GetDynamicWarmingSecrets() {
				fault("secret %s is warming", s.GetName())
			}
		}
	}
	// The dump also has the hosts of clusters that were sent without EDS.
	for _, name := range assignments {
		if discovered[name] {
			got.add(xdswire.EndpointType, name)
		}
	}
	return node, got.sorted(), faults
}

// isDraining ends the fault of a listener that was removed and still has connections.
const isDraining = " is draining"

// assignmentName is the name of an EDS cluster's assignment.
func assignmentName(c *clusterv3.Cluster) string {
	return cmp.Or(c.GetEdsClusterConfig().GetServiceName(), c.GetName())
}

func unpack[M proto.Message](t *testing.T, from *anypb.Any, to M) M {
	t.Helper()
	if err := from.UnmarshalTo(to); err != nil {
		t.Fatal(err)
	}
	return to
}

// sentTo requests everything from the control plane as a proxy with this node, and returns
// the names of the resources.
func sentTo(t *testing.T, addr string, node *corev3.Node) names {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}

	sent, assignments, routes := names{}, map[string]bool{}, map[string]bool{}
	for _, r := range ask(t, stream, node, xdswire.ClusterType, nil) {
		c := unpack(t, r, &clusterv3.Cluster{})
		sent.add(xdswire.ClusterType, c.GetName())
		if c.GetType() == clusterv3.Cluster_EDS {
			assignments[assignmentName(c)] = true
		}
	}
	for _, r := range ask(t, stream, node, xdswire.EndpointType, assignments) {
		sent.add(xdswire.EndpointType, unpack(t, r, &endpointv3.ClusterLoadAssignment{}).GetClusterName())
	}
	for _, r := range ask(t, stream, node, xdswire.ListenerType, nil) {
		l := unpack(t, r, &listenerv3.Listener{})
		sent.add(xdswire.ListenerType, l.GetName())
		for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
			for _, filter := range chain.GetFilters() {
				var hcm hcmv3.HttpConnectionManager
				if filter.GetTypedConfig().MessageIs(&hcm) {
					if name := unpack(t, filter.GetTypedConfig(), &hcm).GetRds().GetRouteConfigName(); name != "" {
						routes[name] = true
					}
				}
			}
		}
	}
	for _, r := range ask(t, stream, node, xdswire.RouteType, routes) {
		sent.add(xdswire.RouteType, unpack(t, r, &routev3.RouteConfiguration{}).GetName())
	}
	return sent.sorted()
}

// ask subscribes to a type and returns the first answer; nil wanted means
// all. Nothing is asked for an empty set.
func ask(t *testing.T, stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient,
	node *corev3.Node, typeURL string, wanted map[string]bool,
) []*anypb.Any {
	t.Helper()
	if wanted != nil && len(wanted) == 0 {
		return nil
	}
	request := &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL, ResourceNames: slices.Sorted(maps.Keys(wanted))}
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			t.Fatalf("the control plane's answer for %s: %v", typeURL, err)
		}
		if response.GetTypeUrl() == typeURL {
			return response.GetResources()
		}
	}
}
