package commands

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// storyProxy is the program `proxy` of stories: a real xDS client that accepts what it gets,
// and serves its configuration in the format of Envoy's dump.
func storyProxy() {
	p := proxyOfStory{held: map[string][]*anypb.Any{}}
	xdsAddr := flag.String("xds", "", "address of plaintext xDS")
	admin := flag.String("admin", "", "address of the admin interface")
	id := flag.String("id", "", "node id")
	cluster := flag.String("cluster", "", "cluster id")
	flag.BoolVar(&p.stuck, "stuck", false, "accept changes and keep what was held before them")
	flag.StringVar(&p.refuse, "refuse", "", "refuse listeners with this `reason`")
	flag.BoolVar(&p.agent, "agent", false, "open a second stream, as the agent of a virtual machine does")
	flag.Parse()
	p.node = &corev3.Node{Id: *id}
	if *cluster != "" {
		p.node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"CLUSTER_ID": structpb.NewStringValue(*cluster)}}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	server := &http.Server{Addr: *admin, Handler: &p, ReadHeaderTimeout: time.Minute}
	go func() { fmt.Fprintln(os.Stderr, server.ListenAndServe()) }()
	if err := p.follow(ctx, *xdsAddr); ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type proxyOfStory struct {
	node         *corev3.Node
	stuck, agent bool
	refuse       string

	mu   sync.Mutex
	held map[string][]*anypb.Any // by type URL
}

// routeNames matches the names of routes in the JSON of listeners.
var routeNames = regexp.MustCompile(`"routeConfigName":\s*"([^"]+)"`)

func (p *proxyOfStory) follow(ctx context.Context, address string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if p.agent {
		own, err := client.StreamAggregatedResources(ctx, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		if err := own.Send(&discoveryv3.DiscoveryRequest{Node: p.node, TypeUrl: xdswire.ProxyConfigType}); err != nil {
			return err
		}
	}
	stream, err := client.StreamAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for _, url := range []string{xdswire.ClusterType, xdswire.ListenerType} {
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: p.node, TypeUrl: url}); err != nil {
			return err
		}
	}
	routes := &discoveryv3.DiscoveryRequest{TypeUrl: xdswire.RouteType} // the last request for routes
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		answer := &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
		if r.GetTypeUrl() == xdswire.RouteType {
			answer.ResourceNames = routes.GetResourceNames()
			routes = answer
		}
		if p.refuse != "" && r.GetTypeUrl() == xdswire.ListenerType {
			answer.VersionInfo, answer.ErrorDetail = "", &statuspb.Status{Code: int32(codes.InvalidArgument), Message: p.refuse}
			if err := stream.Send(answer); err != nil {
				return err
			}
			continue
		}
		p.take(r, routes.GetResourceNames())
		if err := stream.Send(answer); err != nil {
			return err
		}
		names := p.routes()
		if slices.Equal(names, routes.GetResourceNames()) {
			continue
		}
		routes = &discoveryv3.DiscoveryRequest{
			TypeUrl: xdswire.RouteType, ResourceNames: names, VersionInfo: routes.GetVersionInfo(), ResponseNonce: routes.GetResponseNonce(),
		}
		if err := stream.Send(routes); err != nil {
			return err
		}
	}
}

// routes returns the names of routes in the listeners.
func (p *proxyOfStory) routes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := map[string]bool{}
	for _, l := range p.held[xdswire.ListenerType] {
		for _, found := range routeNames.FindAllStringSubmatch(protojson.Format(l), -1) {
			names[found[1]] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// take keeps a response. It has all clusters or listeners, but only new or changed routes.
func (p *proxyOfStory) take(r *discoveryv3.DiscoveryResponse, wanted []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.held[r.GetTypeUrl()]
	if before != nil && p.stuck {
		return
	}
	after := slices.Clone(r.GetResources())
	for _, a := range before {
		name := routeName(a)
		if r.GetTypeUrl() == xdswire.RouteType && slices.Contains(wanted, name) &&
			!slices.ContainsFunc(after, func(b *anypb.Any) bool { return routeName(b) == name }) {
			after = append(after, a)
		}
	}
	p.held[r.GetTypeUrl()] = after
}

func routeName(a *anypb.Any) string {
	var route routev3.RouteConfiguration
	_ = a.UnmarshalTo(&route)
	return route.GetName()
}

// ServeHTTP answers as Envoy's admin interface, with names in snake case.
func (p *proxyOfStory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/config_dump" {
		http.NotFound(w, r)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := timestamppb.New(time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC))
	clusters, listeners, routes := &adminv3.ClustersConfigDump{}, &adminv3.ListenersConfigDump{}, &adminv3.RoutesConfigDump{}
	for _, c := range p.held[xdswire.ClusterType] {
		clusters.DynamicActiveClusters = append(clusters.DynamicActiveClusters, &adminv3.ClustersConfigDump_DynamicCluster{Cluster: c, LastUpdated: at})
	}
	for _, a := range p.held[xdswire.ListenerType] {
		var l listenerv3.Listener
		_ = a.UnmarshalTo(&l)
		listeners.DynamicListeners = append(listeners.DynamicListeners, &adminv3.ListenersConfigDump_DynamicListener{
			Name: l.GetName(), ActiveState: &adminv3.ListenersConfigDump_DynamicListenerState{Listener: a, LastUpdated: at},
		})
	}
	for _, c := range p.held[xdswire.RouteType] {
		routes.DynamicRouteConfigs = append(routes.DynamicRouteConfigs, &adminv3.RoutesConfigDump_DynamicRouteConfig{RouteConfig: c, LastUpdated: at})
	}
	dump := &adminv3.ConfigDump{}
	parts := []proto.Message{&adminv3.BootstrapConfigDump{Bootstrap: &bootstrapv3.Bootstrap{Node: p.node}}, clusters, listeners}
	if len(p.held[xdswire.RouteType]) > 0 { // Envoy omits empty sections
		parts = append(parts, routes)
	}
	for _, m := range parts {
		a, err := anypb.New(m)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		dump.Configs = append(dump.Configs, a)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true, Multiline: true}.Marshal(dump)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write([]byte(strings.TrimSpace(string(text)) + "\n"))
}
