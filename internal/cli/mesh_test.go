package cli

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

const xdsPatience = 30 * time.Second

// xdsMesh is a control plane with one service and one proxy.
type xdsMesh struct {
	groups []Group
	t      *testing.T
	dir    string
	debug  string // host:port
	plain  string // host:port of plaintext xDS
	home   string
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	log    logLines
}

func (m *xdsMesh) service(port int) {
	m.t.Helper()
	text := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: apps}
spec:
  clusterIP: 10.96.0.1
  ports: [{name: http, port: %d}]
`, port)
	path := filepath.Join(m.dir, "web.yaml")
	if err := os.WriteFile(path+".tmp~", []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(path+".tmp~", path); err != nil {
		m.t.Fatal(err)
	}
}

// next answers the next response with an ACK, or with a NACK for the reason.
func (m *xdsMesh) next(refuse string) *discoveryv3.DeltaDiscoveryResponse {
	m.t.Helper()
	r, err := m.stream.Recv()
	if err != nil {
		m.t.Fatal(err)
	}
	answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
	if refuse != "" {
		answer.ErrorDetail = &statuspb.Status{Message: refuse}
	}
	if err := m.stream.Send(answer); err != nil {
		m.t.Fatal(err)
	}
	return r
}

// freeAddr is an address that nothing listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func startXDSMesh(t *testing.T, groups ...Group) *xdsMesh {
	t.Helper()
	m := &xdsMesh{t: t, groups: groups, dir: t.TempDir(), home: t.TempDir()}
	m.service(80)
	m.debug = freeAddr(t)
	m.plain = freeAddr(t)
	plain := m.plain
	levels := logs.NewLevels(server.LogAreas()...)
	lines := slog.NewTextHandler(&m.log, &slog.HandlerOptions{Level: slog.LevelDebug}) // levels leaves out the rest
	log := slog.New(levels.Handler(logs.Limit(lines, time.Now)))
	s, err := server.New(server.Config{
		ClusterID: "c1", ConfigDir: m.dir, StateDir: filepath.Join(t.TempDir(), "state"), TokenAudiences: []string{"istio-ca"},
		GRPCAddr: plain, HTTPAddr: m.debug, TokenDirs: localtoken.Directories(homeOnly(m.home)),
		Log: log, LogLevels: levels, Now: time.Now, Rand: rand.Reader,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*xdsPatience)
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
	m.stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	err = m.stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~client-1.apps~apps.svc.cluster.local"}, TypeUrl: xdswire.ClusterType,
	})
	if err != nil {
		t.Fatal(err)
	}
	m.next("")
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

// homeOnly is an environment that says where home is and nothing else.
func homeOnly(home string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if name != "HOME" {
			return "", false
		}
		return home, true
	}
}

// run runs meshctl and returns its exit code and output.
func (m *xdsMesh) run(args ...string) (code int, stdout, stderr string) {
	var out, talk bytes.Buffer
	env := &Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk, Now: time.Now,
		LookupEnv: homeOnly(m.home),
	}
	code = execute(m.t.Context(), env, append(args, "--server", m.debug), m.groups...)
	return code, out.String(), talk.String()
}

// eventually runs meshctl until its output has what the expression says.
func (m *xdsMesh) eventually(expr string, args ...string) string {
	m.t.Helper()
	want := regexp.MustCompile(expr)
	for end := time.Now().Add(xdsPatience); ; time.Sleep(5 * time.Millisecond) {
		code, stdout, stderr := m.run(args...)
		if code == 0 && want.MatchString(stdout) {
			return stdout
		}
		if time.Now().After(end) {
			m.t.Fatalf("meshctl %v: exit code %d, want output with %s:\n%s%s", args, code, expr, stdout, stderr)
		}
	}
}
