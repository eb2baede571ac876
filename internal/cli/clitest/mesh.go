// Package clitest has a control plane for tests of commands.
package clitest

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/logs"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/xdswire"
)

const Patience = 30 * time.Second

// Mesh is a control plane with one service and one proxy.
type Mesh struct {
	groups []cli.Group
	T      *testing.T
	dir    string
	Debug  string // host:port
	plain  string // host:port of plaintext xDS
	Home   string
	Stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	Log    logLines
}

func (m *Mesh) Service(port int) {
	m.T.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: apps}
spec:
  clusterIP: 10.96.0.1
  ports: [{name: http, port: %d}]
`, port)
	path := filepath.Join(m.dir, "web.yaml")
	if err := os.WriteFile(path+".tmp~", []byte(text), 0o600); err != nil {
		m.T.Fatal(err)
	}
	if err := os.Rename(path+".tmp~", path); err != nil {
		m.T.Fatal(err)
	}
}

// Next answers the next response with an ACK, or with a NACK for the reason.
func (m *Mesh) Next(refuse string) *discoveryv3.DeltaDiscoveryResponse {
	m.T.Helper()
	r, err := m.Stream.Recv()
	if err != nil {
		m.T.Fatal(err)
	}
	answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
	if refuse != "" {
		answer.ErrorDetail = &statuspb.Status{Message: refuse}
	}
	if err := m.Stream.Send(answer); err != nil {
		m.T.Fatal(err)
	}
	return r
}

// FreeAddr is an address that nothing listens on.
func FreeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func StartMesh(t *testing.T, groups ...cli.Group) *Mesh {
	t.Helper()
	m := &Mesh{T: t, groups: groups, dir: t.TempDir(), Home: t.TempDir()}
	m.Service(80)
	m.Debug = FreeAddr(t)
	m.plain = FreeAddr(t)
	plain := m.plain
	levels := logs.NewLevels(server.LogAreas()...)
	lines := slog.NewTextHandler(&m.Log, &slog.HandlerOptions{Level: slog.LevelDebug}) // levels leaves out the rest
	log := slog.New(levels.Handler(logs.Limit(lines, time.Now)))
	s, err := server.New(server.Config{
		ClusterID: "c1", ConfigDir: m.dir, StateDir: filepath.Join(t.TempDir(), "state"), TokenAudiences: []string{"istio-ca"},
		GRPCAddr: plain, HTTPAddr: m.Debug, TokenDirs: localtoken.Directories(HomeOnly(m.Home)),
		Log: log, LogLevels: levels, Now: time.Now, Rand: rand.Reader,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*Patience)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	conn, err := grpc.NewClient(plain, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = conn.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	m.Stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	err = m.Stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~client-1.apps~apps.svc.cluster.local"}, TypeUrl: xdswire.ClusterType,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Next("")
	return m
}

// logLines are what a log holds.
type logLines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// HomeOnly is an environment that says where home is and nothing else.
func HomeOnly(home string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if name != "HOME" {
			return "", false
		}
		return home, true
	}
}

// Run runs meshctl and returns its exit code and output.
func (m *Mesh) Run(args ...string) (code int, stdout, stderr string) {
	var out, talk bytes.Buffer
	env := &cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk, Now: time.Now,
		LookupEnv: HomeOnly(m.Home),
	}
	code = cli.Run(m.T.Context(), env, append(args, "--server", m.Debug), m.groups...)
	return code, out.String(), talk.String()
}

// Eventually runs meshctl until its output has what the expression says.
func (m *Mesh) Eventually(expr string, args ...string) string {
	m.T.Helper()
	want := regexp.MustCompile(expr)
	for end := time.Now().Add(Patience); ; time.Sleep(5 * time.Millisecond) {
		code, stdout, stderr := m.Run(args...)
		if code == 0 && want.MatchString(stdout) {
			return stdout
		}
		if time.Now().After(end) {
			m.T.Fatalf("meshctl %v: exit code %d, want output with %s:\n%s%s", args, code, expr, stdout, stderr)
		}
	}
}
