package attacks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

// agentAddress is the address of the attacked agents. Nothing else on the machine listens there.
const agentAddress = "127.78.0.1"

// attackedAgent is a meshctl agent with its Envoy, whose control plane sends what it is told to.
type attackedAgent struct {
	dir, configPath string
	log             harness.LogBuffer
	plane           *plane
	ended           chan error
}

// startAttacked starts an agent, and waits until its proxy is ready.
func startAttacked(t *testing.T, environ ...string) *attackedAgent {
	t.Helper()
	ca := certstest.NewIstioCA(t)
	a := &attackedAgent{dir: harness.ShortDir(t), plane: newPlane(), ended: make(chan error, 1)}
	a.configPath = filepath.Join(a.dir, "proxy")
	ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, a.plane) })
	id := certstest.Identity()
	cmd := exec.CommandContext(t.Context(), meshctl, "agent",
		"--pod-name", "client", "--pod-namespace", id.Namespace, "--service-account", id.ServiceAccount, "--cluster-id", "cluster1",
		"--bind-address", agentAddress, "--discovery-address", ca.Addr, "--token", ca.TokenFile, "--root-ca", ca.RootFile,
		"--config-path", a.configPath, "--envoy", envoy.Path(t), "--concurrency", "1", "--termination-drain-duration", "0s")
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = a.dir, &a.log, &a.log, append(os.Environ(), environ...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { a.ended <- cmd.Wait(); close(a.ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-a.ended
		if t.Failed() {
			t.Log(a.log.String())
		}
	})
	eventually(t, "a ready proxy", func() error {
		select {
		case err := <-a.ended:
			t.Fatalf("the agent ended: %v", err)
		default:
		}
		status, body, err := a.get(15021, "/healthz/ready")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d %s", status, body)
		}
		return err
	})
	return a
}

func (a *attackedAgent) get(port int, path string) (status int, body string, err error) {
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	resp, err := client.Get(fmt.Sprintf("http://%s:%d%s", agentAddress, port, path))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text := &strings.Builder{}
	err = resp.Write(text)
	return resp.StatusCode, text.String(), err
}

// waitLog waits for a text in the log of the agent and its Envoy.
func (a *attackedAgent) waitLog(t *testing.T, text string) {
	t.Helper()
	eventually(t, "the log", func() error {
		if !strings.Contains(a.log.String(), text) {
			return fmt.Errorf("it lacks %q", text)
		}
		return nil
	})
}

// plane is a control plane that sends clusters and listeners, and sends them again when they change.
type plane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	mu      sync.Mutex
	version int
	changed chan struct{}
	send    map[string][]*anypb.Any // by type
}

func newPlane() *plane {
	return &plane{changed: make(chan struct{}), send: map[string][]*anypb.Any{}}
}

// set replaces the clusters and listeners.
func (p *plane) set(t *testing.T, clusters []*clusterv3.Cluster, listeners []*listenerv3.Listener) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.send = map[string][]*anypb.Any{}
	for _, c := range clusters {
		p.send[xdswire.ClusterType] = append(p.send[xdswire.ClusterType], pack(t, c))
	}
	for _, l := range listeners {
		p.send[xdswire.ListenerType] = append(p.send[xdswire.ListenerType], pack(t, l))
	}
	p.version++
	close(p.changed)
	p.changed = make(chan struct{})
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (p *plane) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	requests, ended := make(chan *discoveryv3.DeltaDiscoveryRequest), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	wanted := map[string]bool{}
	respond := func(typeURL string) error {
		p.mu.Lock()
		version, resources := fmt.Sprint(p.version), p.send[typeURL]
		p.mu.Unlock()
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: version, SystemVersionInfo: version}
		for i, body := range resources {
			r.Resources = append(r.Resources, &discoveryv3.Resource{Name: fmt.Sprintf("attack%d", i), Version: version, Resource: body})
		}
		return stream.Send(r)
	}
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		var err error
		select {
		case r := <-requests:
			if typeURL := r.GetTypeUrl(); r.GetResponseNonce() == "" && (typeURL == xdswire.ClusterType || typeURL == xdswire.ListenerType) {
				wanted[typeURL] = true
				err = respond(typeURL)
			}
		case <-changed:
			for _, typeURL := range []string{xdswire.ClusterType, xdswire.ListenerType} {
				if wanted[typeURL] && err == nil {
					err = respond(typeURL)
				}
			}
		case <-ended:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// forward returns a listener that forwards its connections to an endpoint.
func forward(t *testing.T, from, to *corev3.Address) ([]*clusterv3.Cluster, []*listenerv3.Listener) {
	t.Helper()
	clusters := []*clusterv3.Cluster{{
		Name: "attack0", ConnectTimeout: durationpb.New(deadline),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: "attack0", Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: to}}}},
		}}},
	}}
	return clusters, []*listenerv3.Listener{{
		Name: "attack0", Address: from,
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "tcp", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, &tcpproxyv3.TcpProxy{
				StatPrefix: "attack", ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: "attack0"},
			})},
		}}}},
	}}
}

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

func socketAddress(t *testing.T, address string) *corev3.Address {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: a.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port)},
	}}}
}

// TestSocketsOfTheAgentGiveNothingToCallers: where Envoy forwards connections to a socket of the
// agent, a caller without credentials gets neither the private key nor the configuration of the
// workload.
func TestSocketsOfTheAgentGiveNothingToCallers(t *testing.T) {
	a := startAttacked(t)
	for socket, ask := range map[string]func(context.Context, *grpc.ClientConn) (got string, err error){
		"sds/socket": func(ctx context.Context, conn *grpc.ClientConn) (string, error) {
			stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
			if err != nil {
				return "", err
			}
			_ = stream.Send(&discoveryv3.DiscoveryRequest{ // Recv has the error
				Node: &corev3.Node{Id: "x"}, TypeUrl: xdswire.SecretType, ResourceNames: []string{mesh.SecretCertificate},
			})
			r, err := stream.Recv()
			if err != nil {
				return "", err
			}
			var s tlsv3.Secret
			if err := r.GetResources()[0].UnmarshalTo(&s); err != nil {
				return "", err
			}
			return fmt.Sprintf("a private key of %d bytes", len(s.GetTlsCertificate().GetPrivateKey().GetInlineBytes())), nil
		},
		"XDS": func(ctx context.Context, conn *grpc.ClientConn) (string, error) {
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
			if err != nil {
				return "", err
			}
			_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "x"}, TypeUrl: xdswire.ClusterType})
			r, err := stream.Recv()
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%d clusters of the workload", len(r.GetResources())), nil
		},
	} {
		t.Run(socket, func(t *testing.T) {
			address := net.JoinHostPort(agentAddress, "15200")
			clusters, listeners := forward(t, socketAddress(t, address), pipe(filepath.Join(a.configPath, socket)))
			a.plane.set(t, clusters, listeners)
			eventually(t, "the listener of the attacker", func() error {
				conn, err := net.Dial("tcp", address)
				if err == nil {
					err = conn.Close()
				}
				return err
			})
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			got, err := ask(ctx, conn)
			if err == nil {
				t.Errorf("a caller without credentials got %s", got)
			}
			if ctx.Err() != nil {
				t.Error("the agent answers neither yes nor no")
			}
			a.waitLog(t, `msg="refused a connection that is not from Envoy itself: does an object of the mesh name the socket?" socket=`+filepath.Join(a.configPath, socket))
		})
	}
}

// TestListenerCannotTakeSocketsOfTheAgent: a listener of Envoy at the path of a socket of the agent
// removes the socket and answers there. The agent takes its socket back, reports it, and the
// streams of Envoy go on.
func TestListenerCannotTakeSocketsOfTheAgent(t *testing.T) {
	a := startAttacked(t)
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	for i, socket := range []string{"XDS", "sds/socket"} {
		t.Run(socket, func(t *testing.T) {
			path := filepath.Join(a.configPath, socket)
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			clusters, listeners := forward(t, pipe(path), socketAddress(t, stranger.Addr().String()))
			a.plane.set(t, clusters, listeners)
			eventually(t, "a socket of the agent at its path", func() error {
				return servesEnvoy(path, before, filepath.Join(a.configPath, "envoy-rev.json"), map[string]string{
					"XDS": mesh.XDSCluster, "sds/socket": mesh.SDSCluster,
				}[socket])
			})
			a.waitLog(t, `the agent took it back: does an object of the mesh name this path?" socket=`+path)
			if _, body, err := a.get(15020, "/metrics"); err != nil || !strings.Contains(body, fmt.Sprintf("meshctl_agent_sockets_taken_back_total %d\n", i+1)) {
				t.Errorf("the metrics lack the counter with %d: %v", i+1, err)
			}
			// Envoy's stream goes on: it gets and applies another listener.
			address := net.JoinHostPort(agentAddress, "15200")
			clusters, listeners = forward(t, socketAddress(t, address), socketAddress(t, stranger.Addr().String()))
			a.plane.set(t, clusters, listeners)
			eventually(t, "the next listener", func() error {
				conn, err := net.Dial("tcp", address)
				if err == nil {
					err = conn.Close()
				}
				return err
			})
		})
	}
}

// servesEnvoy returns nil if the agent serves Envoy at a new socket.
func servesEnvoy(path string, before os.FileInfo, bootstrap, cluster string) error {
	now, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if os.SameFile(before, now) {
		return errors.New("the first socket is still there")
	}
	config, err := harness.EnvoyTLS(bootstrap, cluster)
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	return tls.Client(conn, config).Handshake()
}
