// Package proxyless calls services through gRPC's own xDS client: grpc-go on both sides, each
// with an agent, and the control plane.
package proxyless

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"

	"github.com/meshctl/meshctl/internal/agent"
	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/token"
	"github.com/meshctl/meshctl/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline is how long anything may take on a slow machine.
const deadline = 2 * time.Minute

// Addresses that nothing else on the machine listens on.
const (
	planeIP = "127.77.1.2"
	port    = "9090" // of every gRPC server
)

// mesh is a control plane on a directory.
type mesh struct {
	config, state string
	issuer        *token.Issuer
	log           text // of the control plane
}

func startMesh(t *testing.T) *mesh {
	t.Helper()
	m := &mesh{config: t.TempDir(), state: filepath.Join(t.TempDir(), "state")}
	issuer, err := token.GenerateIssuer("https://issuer.test")
	check(t, err)
	m.issuer = issuer
	tokens := filepath.Join(t.TempDir(), "issuer")
	check(t, token.SaveIssuer(tokens, issuer, false))
	m.write(t, "mesh.yaml", meshYAML())
	m.endpoints(t, "echo-1")
	ready := make(chan struct{})
	s, err := server.New(server.Config{
		ClusterID: "cluster1", ConfigDir: m.config, StateDir: m.state,
		TokenIssuers: []server.ClusterDir{{Cluster: "cluster1", Dir: tokens}}, TokenAudiences: []string{"istio-ca"},
		SecureGRPCAddr: planeIP + ":15012", HTTPAddr: planeIP + ":8080", MonitoringAddr: planeIP + ":15014",
		OnReady: func() { close(ready) },
		Version: "test", Log: slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &m.log),
			&slog.HandlerOptions{Level: slog.LevelDebug})), // reports of health in quick succession are told of there
		Now: time.Now, Rand: rand.Reader,
	})
	check(t, err)
	run(t, "control plane", s.Run)
	wait(t, "control plane", ready)
	return m
}

// write replaces a file of the configuration.
func (m *mesh) write(t *testing.T, name, content string) {
	t.Helper()
	temp := filepath.Join(m.config, name+".tmp~")
	check(t, os.WriteFile(temp, []byte(content), 0o600))
	check(t, os.Rename(temp, filepath.Join(m.config, name)))
}

// endpoints makes the pods all that there is behind the service echo.
func (m *mesh) endpoints(t *testing.T, pods ...string) {
	t.Helper()
	m.write(t, "echo.yaml", slice("echo", pods...))
}

// addresses of the pods.
func address(pod string) string {
	return map[string]string{
		"client": "127.77.1.10", "echo-1": "127.77.1.11", "echo-2": "127.77.1.12", "taken": "127.77.1.13", "mallory": "127.77.1.13",
		"vm": "127.77.1.14",
	}[pod]
}

func meshYAML() string {
	var b strings.Builder
	for _, s := range []string{"echo", "mallory"} {
		fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: shop}\n"+
			"spec:\n  clusterIP: None\n  selector: {app: %s}\n  ports: [{name: grpc, port: 80, targetPort: %s}]\n---\n", s, s, port)
	}
	// An address that was of a pod of echo is mallory's by now.
	for pod, app := range map[string]string{"echo-1": "echo", "echo-2": "echo", "taken": "echo", "mallory": "mallory", "client": "client"} {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: shop
  labels: {app: %s, security.istio.io/tlsMode: istio}
  annotations: {inject.istio.io/templates: grpc-agent}
spec: {serviceAccountName: %s}
status: {phase: Running, podIPs: [{ip: %s}]}
---
`, pod, app, app, address(pod))
	}
	return b.String() + slice("mallory", "mallory")
}

func slice(service string, pods ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-abc, namespace: shop, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: grpc, port: %s}]
endpoints:
`, service, service, port)
	for _, pod := range pods {
		fmt.Fprintf(&b, "- {addresses: [%s], targetRef: {kind: Pod, name: %s}}\n", address(pod), pod)
	}
	return b.String()
}

// startAgent runs the agent of a pod, and returns the bootstrap that it wrote,
// where it writes certificates, and what stops it.
func (m *mesh) startAgent(t *testing.T, pod, account string, environ ...string) (bootstrap []byte, certDir string, stop func()) {
	t.Helper()
	dir := harness.ShortDir(t)
	raw, err := m.issuer.Create(token.Claims{
		Namespace: "shop", ServiceAccount: account, Pod: pod, Audiences: []string{"istio-ca"}, TTL: time.Hour,
	}, time.Now())
	check(t, err)
	tokenFile := filepath.Join(dir, "token")
	check(t, os.WriteFile(tokenFile, []byte(raw), 0o600))
	cfg, _, err := agentconfig.Resolve(agentconfig.Input{
		Environ: environ,
		Flags: agentconfig.Flags{
			PodName: pod, PodNamespace: "shop", ServiceAccount: account, ClusterID: "cluster1",
			BindAddress: address(pod), DiscoveryAddress: planeIP + ":15012",
			RootCA: filepath.Join(m.state, "root-cert.pem"), Token: tokenFile,
			ConfigPath: filepath.Join(dir, "proxy"), NoEnvoy: "true",
		},
	})
	check(t, err)
	stop = run(t, "agent of "+pod, func(ctx context.Context) error {
		return agent.Run(ctx, cfg, agent.Options{
			Log: slog.New(slog.NewTextHandler(t.Output(), nil)).With("agent", pod), Stdout: t.Output(), Stderr: t.Output(),
			Now: time.Now, Rand: mathrand.New(mathrand.NewPCG(1, 2)),
		})
	})
	url := "http://" + net.JoinHostPort(address(pod), "15020") + "/healthz/ready"
	until(t, "agent of "+pod, func() error { _, err := get(url); return err })
	bootstrap, err = os.ReadFile(cfg.GRPCBootstrap)
	check(t, err)
	for _, name := range []string{"key.pem", "cert-chain.pem", "root-cert.pem"} {
		info, err := os.Stat(filepath.Join(cfg.CertDir, name))
		check(t, err)
		if info.Mode() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	return bootstrap, cfg.CertDir, stop
}

// echo is a gRPC server that says who it is and who called.
type echo struct {
	testpb.UnimplementedTestServiceServer
	name string
}

func (e *echo) UnaryCall(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	caller := "nobody"
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			caller = info.State.PeerCertificates[0].URIs[0].String()
		}
	}
	return &testpb.SimpleResponse{ServerId: e.name, Username: caller}, misbehave(ctx)
}

// startServer serves as the pod, once its listener has come by xDS.
func startServer(t *testing.T, pod string, bootstrap []byte) {
	t.Helper()
	creds, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	check(t, err)
	serving := make(chan struct{}, 1)
	srv, err := xds.NewGRPCServer(grpc.Creds(creds), xds.BootstrapContentsForTesting(bootstrap),
		xds.ServingModeCallback(func(addr net.Addr, args xds.ServingModeChangeArgs) {
			t.Logf("%s on %v: %v %v", pod, addr, args.Mode, args.Err)
			if args.Mode.String() == "SERVING" {
				serving <- struct{}{}
			}
		}))
	check(t, err)
	testpb.RegisterTestServiceServer(srv, &echo{name: pod})
	listener, err := net.Listen("tcp", net.JoinHostPort(address(pod), port))
	check(t, err)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(listener) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-ended; err != nil {
			t.Errorf("server %s: %v", pod, err)
		}
	})
	wait(t, "listener of "+pod, serving)
}

// dialTarget is a client of the target as the workload of the bootstrap.
func dialTarget(t *testing.T, target string, bootstrap []byte) testpb.TestServiceClient {
	t.Helper()
	resolver, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	check(t, err)
	creds, err := xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	check(t, err)
	conn, err := grpc.NewClient(target, grpc.WithResolvers(resolver), grpc.WithTransportCredentials(creds))
	check(t, err)
	t.Cleanup(func() { check(t, conn.Close()) })
	return testpb.NewTestServiceClient(conn)
}

func call(t *testing.T, c testpb.TestServiceClient, opts ...grpc.CallOption) (*testpb.SimpleResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	return c.UnaryCall(ctx, &testpb.SimpleRequest{}, opts...)
}

func TestProxyless(t *testing.T) {
	m := startMesh(t)
	for pod, account := range map[string]string{"echo-1": "echo", "echo-2": "echo", "mallory": "mallory"} {
		bootstrap, _, _ := m.startAgent(t, pod, account)
		startServer(t, pod, bootstrap)
	}
	bootstrap, certDir, _ := m.startAgent(t, "client", "client", "PROXY_CONFIG_XDS_AGENT=true")
	const caller = "spiffe://cluster.local/ns/shop/sa/client"

	for _, target := range []string{"echo.shop.svc.cluster.local:80", "echo.shop:80", "echo:80"} {
		r, err := call(t, dialTarget(t, "xds:///"+target, bootstrap))
		if err != nil || r.GetServerId() != "echo-1" || r.GetUsername() != caller {
			t.Errorf("%s: %v, %v; want an answer of echo-1 to %s", target, r, err, caller)
		}
	}
	t.Run("plaintext is refused", func(t *testing.T) {
		conn, err := grpc.NewClient(net.JoinHostPort(address("echo-1"), port), grpc.WithTransportCredentials(insecure.NewCredentials()))
		check(t, err)
		defer conn.Close()
		if r, err := call(t, testpb.NewTestServiceClient(conn)); status.Code(err) != codes.Unavailable {
			t.Errorf("answered %v, %v", r, err)
		}
	})
	t.Run("TLS without a certificate is refused", func(t *testing.T) {
		roots, err := os.ReadFile(filepath.Join(m.state, "root-cert.pem"))
		check(t, err)
		cfg, err := dial.TLSConfig(roots, "echo")
		check(t, err)
		cfg.InsecureSkipVerify = true // the server's name is not what is tested
		conn, err := grpc.NewClient(net.JoinHostPort(address("echo-1"), port), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
		check(t, err)
		defer conn.Close()
		if r, err := call(t, testpb.NewTestServiceClient(conn)); status.Code(err) != codes.Unavailable {
			t.Errorf("answered %v, %v", r, err)
		}
	})
	echo := dialTarget(t, "xds:///echo.shop.svc.cluster.local:80", bootstrap)
	t.Run("endpoints are followed", func(t *testing.T) {
		m.endpoints(t, "echo-2")
		until(t, "answer of echo-2", func() error {
			if r, err := call(t, echo, grpc.WaitForReady(true)); err != nil || r.GetServerId() != "echo-2" {
				return fmt.Errorf("%v, %w", r, errors.Join(err))
			}
			return nil
		})
	})
	t.Run("another identity is refused", func(t *testing.T) {
		if r, err := call(t, dialTarget(t, "xds:///mallory.shop:80", bootstrap)); err != nil || r.GetServerId() != "mallory" {
			t.Fatalf("mallory by its own name: %v, %v", r, err)
		}
		m.endpoints(t, "taken") // where mallory serves
		until(t, "refusal", func() error {
			r, err := call(t, echo)
			if r.GetServerId() == "mallory" {
				t.Fatal("a server of another identity was called")
			}
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "SAN") {
				return fmt.Errorf("%v, %w", r, errors.Join(err))
			}
			return nil
		})
	})
	t.Run("roots are followed", func(t *testing.T) {
		root := string(certs.EncodeCerts(certstest.NewRoot(t).Cert))
		m.write(t, "settings.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n"+
			"    caCertificates:\n    - pem: |\n        "+strings.ReplaceAll(strings.TrimSpace(root), "\n", "\n        ")+"\n")
		until(t, "new root in the file", func() error {
			text, err := os.ReadFile(filepath.Join(certDir, "root-cert.pem"))
			if err == nil && !strings.Contains(string(text), root) {
				err = errors.New("it is not there")
			}
			return err
		})
	})
	wantNoRefusals(t)
}

// wantNoRefusals fails if a client of xDS refused a response.
func wantNoRefusals(t *testing.T) {
	t.Helper()
	metrics, err := get("http://" + planeIP + ":15014/metrics")
	check(t, err)
	counts := 0
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "meshctl_xds_nacks_total{") {
			counts++
			if !strings.HasSuffix(line, " 0\n") {
				t.Errorf("gRPC refused something: %s", line)
			}
		}
	}
	if counts == 0 {
		t.Error("refused responses are not counted")
	}
}

// run runs what until the test ends or stop is called, which waits for it.
func run(t *testing.T, what string, do func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- do(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// text is a log that is read while it is written.
type text struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func wait[V any](t *testing.T, what string, c <-chan V) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(deadline):
		t.Fatalf("no %s within %v", what, deadline)
	}
}

// until tries until there is no error.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no %s within %v: %v", what, deadline, err)
		}
	}
}

func get(url string) (string, error) {
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(resp.Status)
	}
	return string(body), err
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
