// Package clitest helps to test commands: it runs them, and a control plane for them.
package clitest

import (
	"bytes"
	"context"
	"crypto/rand"
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
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/logs"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// Patience bounds the wait for an event.
const Patience = 30 * time.Second

// Mesh is a control plane with one service and one proxy.
type Mesh struct {
	T      *testing.T
	Debug  string // host:port of status pages
	Home   string // of the commands that Run runs
	Stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	Log    harness.LogBuffer

	groups []cli.Group
	dir    string // of the configuration
}

// Service writes the service with a port.
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

// Next answers the next response with an ACK, or with a NACK and the reason.
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

// FreeAddr returns an address that nothing listens on.
func FreeAddr(t *testing.T) string { return harness.FreeAddrs(t, 1)[0] }

// StartMesh starts the control plane, connects the proxy, and takes its first response.
func StartMesh(t *testing.T, groups ...cli.Group) *Mesh {
	t.Helper()
	m := &Mesh{T: t, groups: groups, dir: t.TempDir(), Home: t.TempDir()}
	m.Service(80)
	m.Debug = FreeAddr(t)
	plain := FreeAddr(t)
	levels := logs.NewLevels(server.LogAreas()...)
	lines := slog.NewTextHandler(&m.Log, &slog.HandlerOptions{Level: slog.LevelDebug}) // levels filters lines
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

// HomeOnly returns an environment with HOME as its only variable.
func HomeOnly(home string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if name != "HOME" {
			return "", false
		}
		return home, true
	}
}

// Run runs a command with a home directory and returns its exit code and output.
func Run(t *testing.T, home string, args []string, groups ...cli.Group) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(t.Context(), &cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Now: time.Now, LookupEnv: HomeOnly(home),
	}, args, groups...)
	return code, out.String(), errs.String()
}

// Run runs a command that asks the control plane.
func (m *Mesh) Run(args ...string) (code int, stdout, stderr string) {
	return Run(m.T, m.Home, append(args, "--server", m.Debug), m.groups...)
}

// Eventually repeats a command until it succeeds and its output matches.
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
