package certscmd

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
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
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/certs/rotate"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/clitest"
	"github.com/meshctl/meshctl/test/harness"
	"github.com/meshctl/meshctl/test/kube"
)

// rotatedMesh is a mesh of two clusters. The control plane of the first one watches its
// directory.
type rotatedMesh struct {
	t             *testing.T
	home, certs   string
	debug, secure string
	now           time.Time // for commands
	kubeconfig    string
}

func startRotatedMesh(t *testing.T) *rotatedMesh {
	m := &rotatedMesh{t: t, home: t.TempDir(), now: time.Now()}
	m.certs = filepath.Join(m.home, "certs")
	m.must("certs", "root-ca", "--out", m.certs)
	m.must("certs", "intermediate-ca", "--root", m.certs, "--out", m.certs, "cluster1", "cluster2")
	m.debug, m.secure = m.serve(filepath.Join(m.certs, "cluster1"))
	return m
}

// serve runs a control plane with a CA directory.
func (m *rotatedMesh) serve(dir string) (debug, secure string) {
	debug, secure = clitest.FreeAddr(m.t), clitest.FreeAddr(m.t)
	ready := make(chan struct{})
	s, err := server.New(server.Config{
		ClusterID: "cluster1", Replica: "cp-" + strings.ReplaceAll(debug, ":", "-"), ConfigDir: m.t.TempDir(), CADir: dir, TokenAudiences: []string{"istio-ca"},
		SecureGRPCAddr: secure, HTTPAddr: debug, OnReady: func() { close(ready) },
		TokenDirs: localtoken.Directories(clitest.HomeOnly(m.home)),
		Log:       slog.New(slog.DiscardHandler), Now: time.Now, Rand: rand.Reader,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	m.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
	})
	<-ready
	return debug, secure
}

func (m *rotatedMesh) run(args ...string) (code int, text string) {
	var out harness.LogBuffer // a message of a slow key and the output come from two goroutines
	env := &cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Now: func() time.Time { return m.now },
		LookupEnv: func(name string) (string, bool) {
			if name == "KUBECONFIG" && m.kubeconfig != "" {
				return m.kubeconfig, true
			}
			return clitest.HomeOnly(m.home)(name)
		},
	}
	code = run(m.t.Context(), env, args)
	return code, out.String()
}

func (m *rotatedMesh) must(args ...string) {
	m.t.Helper()
	if code, text := m.run(args...); code != cli.ExitOK {
		m.t.Fatalf("%v ends with %d:\n%s", args, code, text)
	}
}

// rotate runs a command of the rotation until it ends with a code and its output matches.
func (m *rotatedMesh) rotate(command string, code int, expr string, args ...string) {
	m.t.Helper()
	args = append([]string{"certs", "rotate-root", command, m.certs}, args...)
	for deadline := time.Now().Add(clitest.Patience); ; time.Sleep(5 * time.Millisecond) {
		got, text := m.run(args...)
		if got == code && regexp.MustCompile(expr).MatchString(text) {
			return
		}
		if time.Now().After(deadline) || got == cli.ExitOK && code != cli.ExitOK {
			m.t.Fatalf("%v ends with %d, want %d and %s:\n%s", args, got, code, expr, text)
		}
	}
}

// connect opens the stream of a proxy with a certificate of certs leaf, and accepts all
// responses. The returned function closes it.
func (m *rotatedMesh) connect(name, typeURL string) (closed func()) {
	m.t.Helper()
	dir := filepath.Join(m.t.TempDir(), "leaf")
	m.must("certs", "leaf", "--ca", filepath.Join(m.certs, "cluster1"), "--namespace", "apps", "--service-account", "web", "--ttl", "48h", "--out", dir)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert-chain.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		m.t.Fatal(err)
	}
	pem, err := os.ReadFile(filepath.Join(m.certs, "cluster1", "root-cert.pem"))
	if err != nil {
		m.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	conn, err := grpc.NewClient(m.secure, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: "istiod.istio-system.svc", Certificates: []tls.Certificate{pair},
	})))
	if err != nil {
		m.t.Fatal(err)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(m.t.Context(), grpc.WaitForReady(true))
	if err != nil {
		m.t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"CLUSTER_ID": "cluster1"})
	if err != nil {
		m.t.Fatal(err)
	}
	err = stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "sidecar~10.0.0.1~" + name + "~apps.svc.cluster.local", Metadata: metadata}, TypeUrl: typeURL})
	if err != nil {
		m.t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		m.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r := first; err == nil; r, err = stream.Recv() {
			_ = stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}) // Recv returns the error
		}
	}()
	return func() {
		_ = conn.Close()
		<-done
	}
}

// TestRotateRootAsksProxies: connected proxies with old certificates stop each step,
// although enough time has passed.
func TestRotateRootAsksProxies(t *testing.T) {
	start := time.Now()
	m := startRotatedMesh(t)
	stale := filepath.Join(t.TempDir(), "stale")
	if err := os.CopyFS(stale, os.DirFS(filepath.Join(m.certs, "cluster1"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(stale, "ca-key.pem"), 0o600); err != nil {
		t.Fatal(err)
	}
	behind, _ := m.serve(stale)

	// Certificates older than the rotation, with a lifetime above --leaf-ttl.
	m.now = start.Add(-time.Minute)
	old := m.connect("web-1.apps", xdswire.ClusterType)
	defer m.connect("vm.apps", xdswire.ProxyConfigType)()
	m.now = start.Add(-30 * time.Second)
	m.must("certs", "rotate-root", "start", m.certs, "--leaf-ttl", "1s", "--propagation", "0s", "--force")
	m.now = start

	m.rotate("next", cli.ExitFailure, `127\.0\.0\.1:1: .*connection refused`, "--server", "127.0.0.1:1,"+m.debug)
	m.rotate("next", cli.ExitFailure, `control planes are not ready for the step; try again .*\n.*: it does not use the root [0-9A-F:]{11} yet`, "--server", behind)
	m.rotate("status", cli.ExitOK, `proxies: 1 control plane asked, with 2 proxies connected: 1 ready, 1 behind\nno control plane of cluster cluster2 was asked\n  web-1\.apps of cluster1: its certificate, and the roots`, "--server", m.debug)
	m.rotate("status", cli.ExitOK, `proxies: not asked`)
	m.rotate("next", cli.ExitFailure, `Error: the step would break 1 proxy; try again when .*\nweb-1\.apps of cluster1: its certificate, and the roots that came with it, are of 20\S+Z, valid until 20\S+Z\n`, "--server", m.debug)
	_, text := m.run("certs", "rotate-root", "status", m.certs, "-o", "json", "--server", m.debug)
	var status struct{ Asked rotateAnswer }
	if err := json.Unmarshal([]byte(text), &status); err != nil || status.Asked.Ready != 1 || len(status.Asked.Behind) != 1 || status.Asked.Behind[0].Proxy != "web-1.apps" {
		t.Errorf("%v: %s", err, text)
	}

	// With its next certificate it is ready.
	old()
	middle := m.connect("web-1.apps", xdswire.ClusterType)
	m.now = start.Add(30 * time.Second)
	m.rotate("next", cli.ExitOK, `Note: 1 control plane asked, with 2 proxies connected: 2 ready, 0 behind\n(.*\n)*sign: the new signers sign`, "--server", m.debug)

	// Certificates of the old root stop the next step.
	m.now = start.Add(time.Minute)
	m.rotate("finish", cli.ExitFailure, `the step would break 2 proxies; (.*\n)+vm\.apps of cluster1: its certificate leads to the root that will be dropped, until 20\S+Z\nweb-1\.apps of`, "--server", m.debug)
	middle()
	m.now = time.Now()
	defer m.connect("web-1.apps", xdswire.ClusterType)()
	m.now = start.Add(time.Minute)
	m.rotate("finish", cli.ExitFailure, `the step would break 1 proxy; (.*\n)+vm\.apps of`, "--server", m.debug)
	m.rotate("finish", cli.ExitOK, `Note: connected proxies were not asked, only the time counts; (.*\n)*finished`)
}

// TestRotateRootRefusesShortWaits: start refuses a --leaf-ttl below the lifetime of the
// certificate of a connected proxy, two days.
func TestRotateRootRefusesShortWaits(t *testing.T) {
	m := startRotatedMesh(t)
	closed := m.connect("web-1.apps", xdswire.ClusterType)
	rehearsal := []string{"--leaf-ttl", "1s", "--propagation", "0s"}

	m.rotate("start", cli.ExitFailure, `^Error: --leaf-ttl 1s is less than 10m: .*; give the longest lifetime of a certificate in the mesh, .*or, in a rehearsal, --force\n$`, rehearsal...)
	m.rotate("start", cli.ExitFailure, `^Error: --propagation 0s is less than 1m: `, "--propagation", "0s")
	m.rotate("plan", cli.ExitOK, `Warning: --leaf-ttl 1s is less than 10m: start refuses that while proxies are connected\n`, rehearsal...)
	const outlived = `(?m)^Error: certificates of connected proxies expire later than %s \(--leaf-ttl\) from now; .*:\nweb-1\.apps of cluster1: valid until 20\S+Z$`
	m.rotate("start", cli.ExitFailure, fmt.Sprintf(outlived, "1s"), append(rehearsal, "--server", m.debug)...)
	m.rotate("start", cli.ExitFailure, fmt.Sprintf(outlived, "1d"), "--server", m.debug)
	m.rotate("plan", cli.ExitOK, `Note: 1 control plane asked, with 1 proxy connected\n(.*\n)*Warning: start would be refused now: certificates of connected proxies expire later than 1s \(--leaf-ttl\) from now; `, append(rehearsal, "--server", m.debug)...)
	m.rotate("plan", cli.ExitFailure, `control planes do not answer:\n127\.0\.0\.1:1: `, "--server", "127.0.0.1:1,"+m.debug)
	m.rotate("start", cli.ExitFailure, `Error: --propagation 0s is less than 1m, and proxies are connected: `, "--leaf-ttl", "49h", "--propagation", "0s", "--server", m.debug)
	m.rotate("start", cli.ExitFailure, `control planes do not answer:\n127\.0\.0\.1:1: `, "--server", "127.0.0.1:1,"+m.debug)
	if _, err := os.Stat(filepath.Join(m.certs, ".rotation")); err == nil {
		t.Error("a start that was refused wrote something")
	}

	m.rotate("start", cli.ExitOK, `Note: 1 control plane asked, with 1 proxy connected\n(.*\n)*trust: `, "--leaf-ttl", "49h", "--server", m.debug)
	m.rotate("status", cli.ExitOK, `(?m)^next, from \S+: meshctl certs rotate-root next \S+certs --server 127\.0\.0\.1:\d+$`, "--server", m.debug)
	m.rotate("plan", cli.ExitOK, `Warning: next would be refused now: the step would break 1 proxy; `, "--server", m.debug)
	m.must("certs", "rotate-root", "abort", m.certs)
	closed()
	m.rotate("start", cli.ExitOK, `Note: 1 control plane asked, with 0 proxies connected\n(.*\n)*trust: `, append(rehearsal, "--server", m.debug)...)
}

func TestRotateRootAskUsage(t *testing.T) {
	t.Parallel()
	m := &rotatedMesh{t: t, home: t.TempDir(), now: time.Now()}
	for args, want := range map[string]string{
		"next certs --ask-proxies":                    "for a directory, name the control planes with --server",
		"next --context a --ask-proxies --server b:1": "give one of them",
		"finish certs --token-file x":                 "--token-file needs --server or --ask-proxies",
		"plan certs --token-file x":                   "--token-file needs --server or --ask-proxies",
		"plan certs --context a":                      "name either the directory or the clusters with --context, not both",
		"status certs --server a:1 --timeout x":       "--timeout",
	} {
		if code, text := m.run(append([]string{"certs", "rotate-root"}, strings.Fields(args)...)...); code != cli.ExitUsage || !strings.Contains(text, want) {
			t.Errorf("%s ends with %d: %s", args, code, text)
		}
	}
}

// TestUnfitCA: a control plane with the old signer stops the step that drops its root.
func TestUnfitCA(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	signer := func(sum string) ca.Certificate { return ca.Certificate{Subject: "CN=" + sum, SHA256: sum} }
	page := func(loaded string, until time.Time) *ca.Page {
		return &ca.Page{
			Status: ca.Status{Loaded: &ca.Material{Signer: signer(loaded), Roots: []ca.Certificate{signer("new root")}}},
			Served: []ca.Signed{{Signer: signer("old"), ValidUntil: until}},
		}
	}
	r := &rotate.Requirement{Trusted: "new root", Gone: "old root", GoneSigners: []string{"old"}}
	for want, p := range map[string]*ca.Page{
		"":                            page("new", now),
		"it still signs with CN=old,": page("old", now),
		"certificates that it signed with CN=old are valid until 2026-11-22T12:00:01Z": page("new", now.Add(time.Second)),
	} {
		if got := unfitCA(p, r, now); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := unfitCA(&ca.Page{}, r, now); got != "" {
		t.Errorf("without a CA: %q", got)
	}
}

// TestRefusalIsBounded: a refusal lists a few of many proxies.
func TestRefusalIsBounded(t *testing.T) {
	t.Parallel()
	a := &rotateAnswer{}
	for i := range 1000 {
		a.Behind = append(a.Behind, behindOf(fmt.Sprintf("web-%03d.apps\x1b[2J", i)))
	}
	text := a.refusal().Error()
	if strings.Count(text, "\n") != maxNamed+1 || !strings.Contains(text, "and 990 more, listed by status -o json") || strings.Contains(text, "\x1b") {
		t.Errorf("got %q", text)
	}
}

func behindOf(name string) proxystatus.Behind {
	return proxystatus.Behind{Proxy: name, Why: "a reason"}
}

// TestRotateRootFindsControlPlanes: --ask-proxies finds the control plane by its Lease.
func TestRotateRootFindsControlPlanes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	cluster1 := kube.Shared(t, "cluster1")
	namespace := cluster1.Namespace(t, "rotate-ask")
	m := startRotatedMesh(t)
	m.kubeconfig = cluster1.KubeconfigFile(t)
	there := []string{"--context", "cluster1", "-n", namespace}
	m.must(append([]string{"certs", "cacerts", filepath.Join(m.certs, "cluster1"), "--apply"}, there...)...)
	m.must(append([]string{"certs", "rotate-root", "start"}, there...)...)
	ask := append([]string{"certs", "rotate-root", "status", "--ask-proxies"}, there...)
	code, text := m.run(ask...)
	if code != cli.ExitFailure || !strings.Contains(text, "context cluster1: no control plane of meshctl was found") || !strings.Contains(text, "--server takes the addresses of control planes") {
		t.Errorf("without a Lease it ends with %d: %s", code, text)
	}
	cluster1.ReplicaLease(t, namespace, "cp-"+strings.ReplaceAll(m.debug, ":", "-"), m.debug, "")
	code, text = m.run(ask...)
	if code != cli.ExitOK || !strings.Contains(text, "proxies: 1 control plane asked, with 0 proxies connected") || !strings.Contains(text, "it does not use the root") ||
		!strings.HasSuffix(text, ": meshctl certs rotate-root next "+strings.Join(there, " ")+" --ask-proxies\n") {
		t.Errorf("with a Lease it ends with %d: %s", code, text)
	}
}
