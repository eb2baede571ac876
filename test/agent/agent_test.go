// Package agent runs the agent with the real Envoy.
package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/agent"
	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/unixsocket"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

// meshctl is the path of the program.
var meshctl string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &meshctl)) }

// deadline is how long anything may take on a slow machine.
const deadline = 2 * time.Minute

// bind is an address that nothing else on the machine listens on.
const bind = "127.77.0.9"

func TestAgentRunsEnvoy(t *testing.T) {
	for _, delta := range []string{"true", "false"} {
		for _, direct := range []string{"true", "false"} {
			t.Run("delta="+delta+" no-relay="+direct, func(t *testing.T) { testAgentRunsEnvoy(t, delta, direct) })
		}
	}
}

func testAgentRunsEnvoy(t *testing.T, delta, direct string) {
	t.Helper()
	ca, plane := certstest.NewIstioCA(t), &controlPlane{}
	ca.KeyExchanges = []tls.CurveID{tls.X25519, tls.CurveP256}
	if delta == "true" {
		ca.KeyExchanges = []tls.CurveID{tls.X25519MLKEM768} // what a control plane may require
	}
	ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, plane) })
	dir := harness.ShortDir(t)
	flags := flagsFor(t, ca, dir)
	flags.Delta, flags.NoRelay = delta, direct
	if delta == "false" {
		flags.KeyExchange = "classic"
	} else {
		flags.KeyExchange = "pqc-required"
	}
	a := start(t, flags)

	a.waitReady(t)
	secrets := a.get(t, 15000, "/config_dump?resource=dynamic_active_secrets")
	if !strings.Contains(secrets, `"default"`) || !strings.Contains(secrets, `"ROOTCA"`) {
		t.Errorf("config_dump has these active secrets: %s", secrets)
	}
	if strings.Contains(secrets, "PRIVATE KEY") {
		t.Error("config_dump shows the key")
	}
	if got, want := plane.peerURI(), certstest.Identity().String(); got != want {
		t.Errorf("the control plane saw %q, want the workload's certificate of %q", got, want)
	}
	first := a.get(t, 15000, "/certs")
	if n := len(ca.Requests()); n != 1 {
		t.Errorf("%d certificate requests before renewal, want 1", n)
	}
	if body := a.get(t, 15090, "/stats/prometheus"); !strings.Contains(body, "envoy_server_live") {
		t.Errorf("metrics on port 15090 lack envoy_server_live: %.300s", body)
	}

	// The certificate lives 20 s and is renewed half-way.
	a.wait(t, "a renewed certificate in Envoy", func() bool { return len(ca.Requests()) > 1 && a.get(t, 15000, "/certs") != first })

	a.stop()
	if err := a.ended(t); err != nil {
		t.Errorf("agent ended with %v", err)
	}
	left := 0
	err := filepath.WalkDir(filepath.Join(dir, "proxy"), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != filepath.Join(dir, "proxy") {
			left++
			t.Errorf("left behind: %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestEnvoyThatFailsEndsTheAgent(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	ca.Serve(t)
	flags := flagsFor(t, ca, harness.ShortDir(t))
	taken, err := net.Listen("tcp", net.JoinHostPort(bind, "15000"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = start(t, flags).ended(t)
	if err == nil || !strings.Contains(err.Error(), "ddress already in use") {
		t.Errorf("agent ended with %v, want the address in use", err)
	}
}

func TestBootstrapIsValid(t *testing.T) {
	for _, kind := range []string{"sidecar", "router"} {
		for _, xdsRoot := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s xds root %v", kind, xdsRoot), func(t *testing.T) {
				ca := certstest.NewIstioCA(t)
				flags := flagsFor(t, ca, t.TempDir())
				flags.Type, flags.DiscoveryAddress = kind, "istiod.istio-system.svc:15012"
				flags.NoRelay = "true"
				env := []string{"CA_ROOT_CA=" + ca.RootFile}
				if xdsRoot {
					flags.RootCA = ""
					env = append(env, "XDS_ROOT_CA="+ca.RootFile, "CA_ROOT_CA=other.pem")
				}
				cfg, _, err := agentconfig.Resolve(agentconfig.Input{Flags: flags, Environ: env})
				if err != nil {
					t.Fatal(err)
				}
				data, err := bootstrap.Marshal(cfg.Config)
				if err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(t.TempDir(), "bootstrap.json")
				if err := os.WriteFile(file, data, 0o600); err != nil {
					t.Fatal(err)
				}
				out, err := exec.CommandContext(t.Context(), envoy.Path(t), "--mode", "validate", "-c", file, "-l", "error").CombinedOutput()
				if err != nil {
					t.Errorf("envoy --mode validate: %v\n%s", err, out)
				}
			})
		}
	}
}

// TestEnvoyRefusesStrangers: Envoy opens its stream only to the agent that started it. Another
// server at the socket, with or without TLS, gets none.
func TestEnvoyRefusesStrangers(t *testing.T) {
	own, err := unixsocket.NewProof()
	if err != nil {
		t.Fatal(err)
	}
	other, err := unixsocket.NewProof()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		proof *unixsocket.Proof
		gets  bool
	}{"the agent": {own, true}, "no TLS": {nil, false}, "another certificate": {other, false}} {
		t.Run(name, func(t *testing.T) {
			ca := certstest.NewIstioCA(t)
			cfg, _, err := agentconfig.Resolve(agentconfig.Input{Flags: flagsFor(t, ca, harness.ShortDir(t))})
			if err != nil {
				t.Fatal(err)
			}
			cfg.ProofCert, cfg.ProofKey = own.Cert, own.Key
			data, err := bootstrap.Marshal(cfg.Config)
			if err != nil {
				t.Fatal(err)
			}
			data = bytes.ReplaceAll(data, []byte(`"initial_fetch_timeout": "0s"`), []byte(`"initial_fetch_timeout": "0.1s"`)) // ready without a stream
			file := filepath.Join(t.TempDir(), "bootstrap.json")
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
			log := slog.New(slog.NewTextHandler(t.Output(), nil))
			if err := os.MkdirAll(cfg.ConfigPath, 0o700); err != nil {
				t.Fatal(err)
			}
			l, err := unixsocket.Listen(cfg.XDSSocket, log)
			if err != nil {
				t.Fatal(err)
			}
			stranger := &stranger{}
			server := grpc.NewServer(unixsocket.ServerOptions(tc.proof, l.Addr(), log)...)
			discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, stranger)
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(l) }()
			t.Cleanup(func() {
				server.Stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
			proxy := envoy.Start(t, file)
			harness.Eventually(t, deadline, "what becomes of the stream", func() error {
				switch stats := proxy.Stats(`cluster\.xds-grpc;\.`); {
				case stranger.streams.Load() > 0 && !tc.gets:
					t.Fatal("the stranger got the stream of Envoy")
				case stranger.streams.Load() > 0 && tc.gets, stats["cluster.xds-grpc;.upstream_cx_connect_fail"] > 1 && !tc.gets:
					return nil
				}
				return errors.New("not known yet")
			})
		})
	}
}

// stranger counts the streams that it gets.
type stranger struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	streams atomic.Int64
}

func (s *stranger) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	s.streams.Add(1)
	<-stream.Context().Done()
	return nil
}

// TestExtraStatTags: what extensions write into names of statistics becomes labels.
func TestExtraStatTags(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	cfg, warnings, err := agentconfig.Resolve(agentconfig.Input{
		Flags:          flagsFor(t, ca, t.TempDir()),
		Environ:        []string{"PROXY_CONFIG=extraStatTags: [request_operation, response_code]"},
		PodAnnotations: []byte(`sidecar.istio.io/extraStatTags="my.host"`),
	})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	cfg.Stats.Prefixes = append(cfg.Stats.Prefixes, "cluster.")
	cfg.Override = []byte("{static_resources: {clusters: [{name: books, alt_stat_name: 'reporter=.=source;.;request_operation=.=GetBook;.;my.host=.=a.example;.;books'}]}}")
	data, err := bootstrap.Marshal(cfg.Config)
	if err != nil {
		t.Fatal(err)
	}
	var parts map[string]any
	if err := json.Unmarshal(data, &parts); err != nil {
		t.Fatal(err)
	}
	delete(parts, "dynamic_resources") // Envoy is ready without a control plane
	if data, err = json.Marshal(parts); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bootstrap.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	proxy := envoy.Start(t, file)
	for line := range strings.Lines(string(proxy.Get("/stats/prometheus"))) {
		if strings.Contains(line, `request_operation="GetBook"`) && strings.Contains(line, `my_host="a.example"`) {
			return
		}
	}
	t.Error("no statistic has the labels request_operation and my_host")
}

// flagsFor configures an agent in dir for the authority and control plane ca.
func flagsFor(t *testing.T, ca *certstest.IstioCA, dir string) agentconfig.Flags {
	t.Helper()
	addr := ca.Addr
	if addr == "" {
		addr = "127.0.0.1:15012"
	}
	id, none := certstest.Identity(), time.Duration(0)
	return agentconfig.Flags{
		PodName: "client", PodNamespace: id.Namespace, ServiceAccount: id.ServiceAccount,
		BindAddress: bind, DiscoveryAddress: addr, RootCA: ca.RootFile, Token: ca.TokenFile,
		ClusterID: "cluster1", Network: "network1",
		ConfigPath: filepath.Join(dir, "proxy"), Envoy: envoy.Path(t), Concurrency: 1,
		TerminationDrainDuration: &none,
	}
}

// running is an agent that was started.
type running struct {
	stop func()
	done chan error
	http *http.Client
}

func start(t *testing.T, flags agentconfig.Flags, environ ...string) *running {
	t.Helper()
	cfg, warnings, err := agentconfig.Resolve(agentconfig.Input{Flags: flags, Environ: append([]string{"SECRET_TTL=20s"}, environ...)})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	ctx, stop := context.WithCancel(t.Context())
	a := &running{stop: stop, done: make(chan error, 1), http: dial.HTTPClient(10*time.Second, nil)}
	go func() {
		a.done <- agent.Run(ctx, cfg, agent.Options{
			Log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
			Stdout: t.Output(), Stderr: t.Output(),
			Now: time.Now, Rand: rand.New(rand.NewPCG(1, 2)),
		})
		close(a.done)
	}()
	t.Cleanup(func() {
		stop()
		<-a.done
		a.http.CloseIdleConnections()
	})
	return a
}

// ended waits for the end of the agent.
func (a *running) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-a.done:
		return err
	case <-time.After(deadline):
		t.Fatal("the agent does not end")
		return nil
	}
}

func (a *running) wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	timeout := time.After(deadline)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case err := <-a.done:
			t.Fatalf("the agent ended before there was %s: %v", what, err)
		case <-timeout:
			t.Fatalf("no %s", what)
		case <-tick.C:
		}
	}
}

func (a *running) waitReady(t *testing.T) {
	t.Helper()
	a.wait(t, "readiness", func() bool {
		resp, err := a.http.Get("http://" + net.JoinHostPort(bind, "15021") + "/healthz/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func (a *running) get(t *testing.T, port uint16, path string) string {
	t.Helper()
	resp, err := a.http.Get("http://" + netip.AddrPortFrom(netip.MustParseAddr(bind), port).String() + path)
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

// controlPlane answers the requests for clusters and listeners with one
// cluster and no listener.
type controlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu   sync.Mutex
	peer string
}

func (c *controlPlane) peerURI() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer
}

func (c *controlPlane) notePeer(ctx context.Context) {
	p, _ := peer.FromContext(ctx)
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(info.State.VerifiedChains) > 0 {
		c.peer = info.State.PeerCertificates[0].URIs[0].String()
	}
}

// secret is a secret of the agent.
func secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: mesh.SDSCluster},
			}}},
		}},
		ResourceApiVersion: corev3.ApiVersion_V3,
	}}
}

func resource(typeURL string) (*anypb.Any, string, error) {
	if typeURL == xdswire.ClusterType {
		tls, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret(mesh.SecretCertificate)},
			ValidationContextType:          &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: secret(mesh.SecretRoots)},
		}})
		if err != nil {
			return nil, "", err
		}
		a, err := anypb.New(&clusterv3.Cluster{Name: "one", TransportSocket: &corev3.TransportSocket{
			Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: tls},
		}})
		return a, "one", err
	}
	a, err := anypb.New(&listenerv3.Listener{})
	return a, "", err
}

func (c *controlPlane) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	c.notePeer(stream.Context())
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil
		}
		if req.GetResponseNonce() != "" {
			continue
		}
		body, name, err := resource(req.GetTypeUrl())
		if err != nil {
			return err
		}
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), VersionInfo: "1", Nonce: "1"}
		if name != "" {
			resp.Resources = append(resp.Resources, body)
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (c *controlPlane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	c.notePeer(stream.Context())
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil
		}
		if req.GetResponseNonce() != "" {
			continue
		}
		body, name, err := resource(req.GetTypeUrl())
		if err != nil {
			return err
		}
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "1"}
		if name != "" {
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: body})
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}
