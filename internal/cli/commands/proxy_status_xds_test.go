package commands

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/clitest"
	"github.com/meshctl/meshctl/test/kube"
)

// askedMesh is a control plane with one proxy, web-1.apps, for requests over xDS.
type askedMesh struct {
	t             *testing.T
	dir, ca       string
	secure, plain string
	kubeconfig    string
}

func startAskedMesh(t *testing.T, change func(*server.Config)) *askedMesh {
	m := &askedMesh{t: t, dir: t.TempDir(), secure: clitest.FreeAddr(t), plain: clitest.FreeAddr(t)}
	m.ca = filepath.Join(m.dir, "certs", "cluster1")
	m.must("certs", "root-ca", "--out", filepath.Join(m.dir, "certs"))
	m.must("certs", "intermediate-ca", "--root", filepath.Join(m.dir, "certs"), "--out", filepath.Join(m.dir, "certs"), "cluster1")
	m.must("token", "issuer", "--out", filepath.Join(m.dir, "issuer"))
	cfg := server.Config{
		ClusterID: "cluster1", CADir: m.ca, TokenAudiences: []string{"istio-ca"}, GRPCAddr: m.plain, SecureGRPCAddr: m.secure,
		TokenIssuers: []server.ClusterDir{{Cluster: "cluster1", Dir: filepath.Join(m.dir, "issuer")}},
		Log:          slog.New(slog.DiscardHandler), Now: time.Now, Rand: rand.Reader,
	}
	change(&cfg)
	s, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	conn, err := grpc.NewClient(m.plain, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	request := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "sidecar~10.0.0.1~web-1.apps~apps.svc.cluster.local"}, TypeUrl: xdswire.ClusterType}
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	request = &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}
	if err := stream.Send(request); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *askedMesh) run(args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	env := &cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Now: time.Now,
		LookupEnv: func(name string) (string, bool) {
			if name == "KUBECONFIG" && m.kubeconfig != "" {
				return m.kubeconfig, true
			}
			return clitest.HomeOnly(m.dir)(name)
		},
	}
	code = Run(m.t.Context(), env, args)
	return code, out.String(), errs.String()
}

func (m *askedMesh) must(args ...string) (stdout string) {
	m.t.Helper()
	code, stdout, stderr := m.run(args...)
	if code != cli.ExitOK {
		m.t.Fatalf("%v ends with %d:\n%s%s", args, code, stdout, stderr)
	}
	return stdout
}

// leaf creates the certificate of a service account.
func (m *askedMesh) leaf(namespace string) (dir string) {
	m.t.Helper()
	dir = filepath.Join(m.dir, "leaf-"+namespace)
	m.must("certs", "leaf", "--ca", m.ca, "--namespace", namespace, "--service-account", "operator", "--out", dir)
	return dir
}

// ps runs proxy-status until exit code and output match.
func (m *askedMesh) ps(code int, stdout, stderr string, args ...string) (out string) {
	m.t.Helper()
	args = append([]string{"ps", "--xds-address", m.secure}, args...)
	for deadline := time.Now().Add(clitest.Patience); ; time.Sleep(5 * time.Millisecond) {
		got, out, errs := m.run(args...)
		if got == code && regexp.MustCompile(stdout).MatchString(out) && regexp.MustCompile(stderr).MatchString(errs) {
			return out
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%v ends with %d, want %d, %s and %s:\n%s%s", args, got, code, stdout, stderr, out, errs)
		}
	}
}

// TestProxyStatusOverXDS asks with identities that may read status pages, and with others.
func TestProxyStatusOverXDS(t *testing.T) {
	m := startAskedMesh(t, func(c *server.Config) {
		c.ConfigDir = t.TempDir()
		service := "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: apps}, spec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}}"
		if err := os.WriteFile(filepath.Join(c.ConfigDir, "a.yaml"), []byte(service), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	const istiod = "istiod.istio-system.svc"
	const table = `^NAME +CLUSTER +ISTIOD +VERSION +SUBSCRIBED TYPES +STATUS\nweb-1\.apps .* 1 \(CDS\) +SYNCED\n$`
	system, apps, other := m.leaf("istio-system"), m.leaf("apps"), m.leaf("shop")
	m.ps(0, table, `^$`, "--cert-dir", system, "--authority", istiod)
	out := m.ps(0, ``, `^$`, "--cert-dir", system, "-o", "json") // the certificate has the host, too
	var reports []proxystatus.Report
	if err := json.Unmarshal([]byte(out), &reports); err != nil || len(reports) != 1 || reports[0].Proxies[0].Stream != "web-1.apps-1" || reports[0].Proxies[0].Connected.IsZero() {
		t.Errorf("a control plane of meshctl tells %v, %s", err, out)
	}
	// Other identities see the fields of Istio's message.
	m.ps(0, table, `^$`, "--cert-dir", apps)
	m.ps(0, `^NAME[^\n]*\n$`, `No proxy is connected`, "--cert-dir", other)

	// With a token instead.
	file := filepath.Join(m.dir, "token")
	m.must("token", "create", "--issuer", filepath.Join(m.dir, "issuer"), "--service-account", "istio-system/default", "--out", file)
	root := filepath.Join(m.ca, "root-cert.pem")
	m.ps(0, table, `^$`, "--token-file", file, "--root-ca", root)
	m.ps(0, table, `^$`, "--token-file", file, "--insecure", "--authority", "any.example")

	// One proxy.
	dump := filepath.Join(m.dir, "dump.json")
	if err := os.WriteFile(dump, []byte(`{"configs":[{"@type":"type.googleapis.com/envoy.admin.v3.ClustersConfigDump"},{"@type":"type.googleapis.com/envoy.admin.v3.ListenersConfigDump"},{"@type":"type.googleapis.com/envoy.admin.v3.RoutesConfigDump"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, by := range []string{system, apps} {
		args := []string{"ps", "web-1.apps", "--xds-address", m.secure, "--cert-dir", by, "--file", dump}
		if code, stdout, stderr := m.run(args...); code != cli.ExitFindings || !strings.Contains(stdout, "Only in Istiod Clusters: outbound|80||web.apps.svc.cluster.local") {
			t.Errorf("by %s: %d\n%s%s", by, code, stdout, stderr)
		}
	}

	junk := filepath.Join(t.TempDir(), "junk.pem")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.must("certs", "root-ca", "--out", filepath.Join(m.dir, "another"))
	for name, tc := range map[string]struct {
		code int
		want string
		args []string
	}{
		"nobody":               {2, "--xds-address needs an identity: give --cert-dir", []string{"--root-ca", root}},
		"no roots":             {2, "--xds-address needs the roots of the control plane: give --root-ca", []string{"--token-file", file}},
		"another root":         {1, "unknown authority.*give its roots with --root-ca", []string{"--token-file", file, "--root-ca", filepath.Join(m.dir, "another", "root-cert.pem")}},
		"another name":         {1, "not any.example.*the name in its certificate with --authority", []string{"--cert-dir", system, "--authority", "any.example"}},
		"no PEM":               {2, "no PEM certificate among the roots", []string{"--cert-dir", system, "--root-ca", junk}},
		"no file":              {1, "--root-ca: .*no such file", []string{"--cert-dir", system, "--root-ca", filepath.Join(m.dir, "none")}},
		"no directory":         {1, "--cert-dir: .*no such file", []string{"--cert-dir", filepath.Join(m.dir, "none")}},
		"no token in the file": {1, "request authenticate failure; it wants the token", []string{"--token-file", junk, "--root-ca", root}},
		"both":                 {2, "--insecure and --root-ca: give one of them", []string{"--cert-dir", system, "--insecure", "--root-ca", root}},
		"a port without TLS":   {4, "first record does not look like a TLS handshake", []string{"--cert-dir", system, "--xds-address", m.plain}},
		"no port":              {2, "--xds-address \"istiod\": want host:port", []string{"--cert-dir", system, "--xds-address", "istiod"}},
		"one that is silent":   {4, `127\.0\.0\.1:1: .*connection refused`, []string{"--cert-dir", system, "--xds-address", "127.0.0.1:1"}},
	} {
		args := append([]string{"ps", "--xds-address", m.secure}, tc.args...)
		if code, stdout, stderr := m.run(args...); code != tc.code || !regexp.MustCompile(tc.want).MatchString(stderr) {
			t.Errorf("%s: %d, want %d and %s: %s%s", name, code, tc.code, tc.want, stdout, stderr)
		}
	}
	if code, _, stderr := m.run("ps", "--cert-dir", system); code != cli.ExitUsage || !strings.Contains(stderr, "--cert-dir needs --xds-address") {
		t.Errorf("without an address: %d, %s", code, stderr)
	}
}

// TestProxyStatusOverXDSOfCluster gets token and roots from the cluster of a kubeconfig.
func TestProxyStatusOverXDSOfCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	t.Parallel()
	cluster := kube.Start(t)
	cluster.Kubectl(t, "", "create", "namespace", "istio-system")
	cluster.Apply(t, "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {ports: [{name: http, port: 80}]}}")
	m := startAskedMesh(t, func(c *server.Config) { c.KubeAccess = cluster.Config() })
	m.kubeconfig = cluster.KubeconfigFile(t)
	m.ps(0, `\nweb-1\.apps .* 1 \(CDS\) +SYNCED\n$`, `^$`, "--authority", "istiod.istio-system.svc")
	m.ps(1, ``, `make a token of service account nowhere/default \(or give one with --token-file\)`, "-i", "nowhere")
	file := filepath.Join(m.dir, "token")
	m.must("token", "create", "--issuer", filepath.Join(m.dir, "issuer"), "--service-account", "istio-system/default", "--out", file)
	m.ps(1, ``, `roots of the mesh: .*istio-ca-root-cert.*; give a file with --root-ca`, "-i", "nowhere", "--token-file", file)
}
