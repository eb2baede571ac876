package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// inboundPort is the port at which Envoy passes requests on to the application.
const inboundPort = 15106

// inbound is a control plane that sends a listener at inboundPort for an application.
type inbound struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	cluster  *clusterv3.Cluster
	listener *listenerv3.Listener
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newInbound(t *testing.T, app net.Addr) *inbound {
	t.Helper()
	address := func(host string, port int) *corev3.Address {
		return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
		}}}
	}
	tcp, ok := app.(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is no TCP address", app)
	}
	route := &routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{{
		Name: "app", Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "app"}, Timeout: durationpb.New(0),
			}},
		}},
	}}}
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix:     "app",
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: route},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, &routerv3.Router{})},
		}},
	}
	return &inbound{
		cluster: &clusterv3.Cluster{
			Name: "app", ConnectTimeout: durationpb.New(deadline),
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
			LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: "app", Endpoints: []*endpointv3.LocalityLbEndpoints{{
				LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
					Endpoint: &endpointv3.Endpoint{Address: address(tcp.IP.String(), tcp.Port)},
				}}},
			}}},
		},
		listener: &listenerv3.Listener{
			Name: "inbound", Address: address(bind, inboundPort), TrafficDirection: corev3.TrafficDirection_INBOUND,
			FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
				Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, manager)},
			}}}},
		},
	}
}

// DeltaAggregatedResources sends the cluster and the listener.
func (i *inbound) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil
		}
		if req.GetResponseNonce() != "" {
			continue
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "1"}
		var body *anypb.Any
		switch req.GetTypeUrl() {
		case xdswire.ClusterType:
			body, err = anypb.New(i.cluster)
		case xdswire.ListenerType:
			body, err = anypb.New(i.listener)
		default:
			continue
		}
		if err != nil {
			return err
		}
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: "one", Version: "1", Resource: body})
		if req.GetTypeUrl() == xdswire.ClusterType {
			resp.Resources[0].Name = "app"
		} else {
			resp.Resources[0].Name = "inbound"
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// application is an application with metrics and a probe.
func application(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprintln(w, "app_requests 7")
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "warming up", http.StatusTeapot) })
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(20 * time.Millisecond):
			fmt.Fprintln(w, "done")
		case <-r.Context().Done():
		}
	})
	app := httptest.NewUnstartedServer(mux)
	listener, err := net.Listen("tcp", net.JoinHostPort(bind, "0"))
	if err != nil {
		t.Fatal(err)
	}
	app.Listener.Close()
	app.Listener = listener
	app.Start()
	t.Cleanup(app.Close)
	return app
}

// TestStatusPort: the status port serves the probes of the application and the metrics of
// agent, Envoy and application, which also arrive when the scraper asks for OpenMetrics.
func TestStatusPort(t *testing.T) {
	app := application(t)
	_, port, err := net.SplitHostPort(app.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ca := certstest.NewIstioCA(t)
	ca.Serve(t, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, newInbound(t, app.Listener.Addr()))
	})
	a := start(t, flagsFor(t, ca, harness.ShortDir(t)),
		`ISTIO_KUBE_APP_PROBERS={"/app-health/web/readyz":{"httpGet":{"path":"/ready","port":`+port+`}}}`,
		`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","path":"/metrics","port":"`+port+`"}`)
	a.waitReady(t)
	if got := a.get(t, 15020, "/app-health/web/readyz"); got != "warming up\n" {
		t.Errorf("probe: %q", got)
	}
	all := a.get(t, 15020, "/stats/prometheus")
	for _, want := range []string{
		`istio_agent_cert_expiry_seconds{resource_name="default"} `,
		`istio_agent_num_outgoing_requests{request_type="csr"} 1` + "\n",
		`istio_agent_num_outgoing_retries{request_type="csr"} 0` + "\n",
		`istio_agent_num_failed_outgoing_requests{request_type="csr"} 0` + "\n",
		`istio_agent_outgoing_latency{request_type="csr"} `,
		"istio_agent_num_file_secret_failures_total 0\n",
		`istio_agent_istiod_connection_terminations{type="cancelled"} 0` + "\n",
		`istio_agent_istiod_connection_terminations{type="error"} 0` + "\n",
		`istio_agent_envoy_connection_terminations{type="cancelled"} 0` + "\n",
		`istio_agent_envoy_connection_terminations{type="error"} 0` + "\n",
		"istio_agent_scrapes_total 1\n",
		"istio_agent_go_goroutines ", "istio_agent_process_resident_memory_bytes ",
		"envoy_server_live{} 1\n", "app_requests 7\n",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the metrics lack %q: %.4000s", want, all)
		}
	}
	if some := a.get(t, 15020, "/stats/prometheus?filter=nothing"); strings.Contains(some, "envoy_server_live") {
		t.Error("Envoy does not get the query")
	}
	if live := a.get(t, inboundPort, "/ready"); live != "warming up\n" {
		t.Errorf("through Envoy: %q", live)
	}
}

// TestDrainUnderLoad: with EXIT_ON_ZERO_ACTIVE_CONNECTIONS the agent ends when its clients are
// done, and none of their requests fails, although Envoy drains meanwhile.
func TestDrainUnderLoad(t *testing.T) {
	app := application(t)
	ca := certstest.NewIstioCA(t)
	ca.Serve(t, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, newInbound(t, app.Listener.Addr()))
	})
	a := start(t, flagsFor(t, ca, harness.ShortDir(t)), "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=1s")
	a.waitReady(t)

	const clients, requests = 8, 150
	ended, half := make(chan error, clients), make(chan struct{}, clients)
	for range clients {
		go func() { ended <- load(requests, half) }()
	}
	for range clients {
		<-half
	}
	a.stop() // as on SIGTERM
	for range clients {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := a.ended(t); err != nil {
		t.Errorf("agent ended with %v", err)
	}
}

// TestTerminationUnderLoad: after SIGTERM no request fails until the drain time is over. Then the
// agent ends, and leaves nothing.
func TestTerminationUnderLoad(t *testing.T) {
	app := application(t)
	ca := certstest.NewIstioCA(t)
	ca.Serve(t, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, newInbound(t, app.Listener.Addr()))
	})
	const drain = 3 * time.Second
	flags := flagsFor(t, ca, harness.ShortDir(t))
	p := run(t, flags, "", "--termination-drain-duration", drain.String())
	const clients = 8
	var signalled time.Time
	failed, ready, sent := make(chan time.Time, clients), make(chan struct{}, clients), make(chan struct{})
	for range clients {
		go func() {
			_ = load(1, ready)
			<-sent
			for {
				if err := load(1, make(chan struct{}, 1)); err != nil {
					failed <- time.Now()
					return
				}
			}
		}()
	}
	for range clients {
		<-ready
	}
	envoyPID := p.envoy(t)
	signalled = time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	close(sent)
	for range clients {
		if after := (<-failed).Sub(signalled); after < drain {
			t.Errorf("a request failed %v after SIGTERM, before the drain time of %v is over", after, drain)
		}
	}
	if err := p.ended(t); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if err := syscall.Kill(envoyPID, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("Envoy is left: %v", err)
	}
	wantEmpty(t, flags.ConfigPath)
}

// load sends requests through Envoy. It reports when the first half is done, and the first
// request that fails.
func load(requests int, half chan<- struct{}) error {
	report := sync.OnceFunc(func() { half <- struct{}{} })
	defer report()
	client := &http.Client{Timeout: deadline, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for i := range requests {
		if i == requests/2 {
			report()
		}
		resp, err := client.Get("http://" + net.JoinHostPort(bind, fmt.Sprint(inboundPort)) + "/slow")
		if err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("request %d: %s, %w", i, resp.Status, err)
		}
	}
	return nil
}

// TestLocalMetrics: with METRICS_LOCALHOST_ACCESS_ONLY only processes of the pod get metrics, neither
// others nor requests that come through Envoy. Readiness stays.
func TestLocalMetrics(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, &controlPlane{}) })
	a := start(t, flagsFor(t, ca, harness.ShortDir(t)), "METRICS_LOCALHOST_ACCESS_ONLY=true")
	a.waitReady(t)
	for _, tc := range []struct {
		port   int
		path   string
		host   string
		status int
	}{
		{15020, "/stats/prometheus", "", http.StatusOK},
		{15020, "/metrics", "", http.StatusOK},
		{15020, "/metrics", "web.apps:15020", http.StatusForbidden}, // of a page whose name leads here
		{15020, "/stats/prometheus/envoy", "web.apps:15020", http.StatusForbidden},
		{15090, "/stats/prometheus", "", http.StatusForbidden},
		{15090, "/stats/prometheus", "localhost", http.StatusForbidden},
		{15021, "/healthz/ready", "web.apps", http.StatusOK},
	} {
		url := fmt.Sprintf("http://%s%s", net.JoinHostPort(bind, fmt.Sprint(tc.port)), tc.path)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = tc.host
		resp, err := a.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tc.status {
			t.Errorf("%s with host %q: status %d, want %d: %.200s", url, tc.host, resp.StatusCode, tc.status, body)
		}
	}
}
