package agent

import (
	"cmp"
	"context"
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
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/probe"
	"github.com/meshctl/meshctl/internal/agent/revocation"
	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// The test's own program plays Envoy: it writes what happens to it to a file.
const (
	fakeEnv  = "MESHCTL_TEST_FAKE_ENVOY" // the file
	fakeMode = "MESHCTL_TEST_FAKE_MODE"  // run, fail, stubborn
)

func TestMain(m *testing.M) {
	if os.Getenv(fakeEnv) != "" {
		if err := fakeEnvoy(); err != nil {
			fmt.Fprintln(os.Stderr, "fake [critical]", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func fakeEnvoy() error {
	log, err := os.OpenFile(os.Getenv(fakeEnv), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if os.Getenv(fakeMode) == "fail" {
		return errors.New("cannot bind '0.0.0.0:15090': Address already in use")
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	var part struct {
		Admin struct {
			Address struct{ Pipe struct{ Path string } }
		}
	}
	if err := json.Unmarshal([]byte(os.Args[slices.Index(os.Args, "--config-yaml")+1]), &part); err != nil {
		return err
	}
	listener, err := net.Listen("unix", part.Admin.Address.Pipe.Path)
	if err != nil {
		return err
	}
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				fmt.Fprintf(log, "drain %s\n", r.URL)
			}
			fmt.Fprint(w, "cluster_manager.cds.update_success: 1\nlistener_manager.lds.update_success: 1\n"+
				"server.state: 0\nlistener_manager.workers_started: 1\n")
		}))
	}()
	bootstrap := os.Args[slices.Index(os.Args, "-c")+1]
	info, err := os.Stat(bootstrap)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "start %v\n", info.Mode())
	for range signals {
		fmt.Fprintln(log, "terminate")
		if os.Getenv(fakeMode) != "stubborn" {
			break
		}
	}
	return nil
}

const deadline = 2 * time.Minute

// agentTest is an agent with a fake Envoy.
type agentTest struct {
	ca      *certstest.IstioCA
	cfg     config.Config
	log     string // of the fake Envoy
	environ []string
	done    chan error
	stop    context.CancelFunc
}

func newAgentTest(t *testing.T, kind, mode string, services ...func(*grpc.Server)) *agentTest {
	t.Helper()
	ca := certstest.NewIstioCA(t)
	ca.Serve(t, services...)
	dir := harness.ShortDir(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	drain := 50 * time.Millisecond
	id := certstest.Identity()
	cfg, _, err := config.Resolve(config.Input{Flags: config.Flags{
		Type: kind, PodName: "client", PodNamespace: id.Namespace, ServiceAccount: id.ServiceAccount,
		BindAddress: "127.77.0.8", DiscoveryAddress: ca.Addr, RootCA: ca.RootFile, Token: ca.TokenFile,
		ConfigPath: filepath.Join(dir, "proxy"), Envoy: self, TerminationDrainDuration: &drain,
	}})
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	return &agentTest{
		ca: ca, cfg: cfg, log: log, done: make(chan error, 1),
		environ: append(os.Environ(), fakeEnv+"="+log, fakeMode+"="+mode),
	}
}

func (a *agentTest) start(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	a.stop = stop
	go func() {
		a.done <- Run(ctx, a.cfg, Options{
			Log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
			Stdout: t.Output(), Stderr: t.Output(), Environ: a.environ,
			Now: time.Now, Rand: rand.New(rand.NewPCG(1, 2)),
		})
		close(a.done)
	}()
	t.Cleanup(func() { stop(); <-a.done })
}

func (a *agentTest) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-a.done:
		return err
	case <-time.After(deadline):
		t.Fatal("the agent does not end")
		return nil
	}
}

func (a *agentTest) get(path string) (status int, body string) {
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + netip.AddrPortFrom(a.cfg.Listen, a.cfg.StatusPort).String() + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(data)
}

func (a *agentTest) waitReady(t *testing.T) {
	t.Helper()
	timeout := time.After(deadline)
	for {
		status, body := a.get("/healthz/ready")
		if status == http.StatusOK {
			return
		}
		select {
		case err := <-a.done:
			t.Fatalf("the agent ended: %v", err)
		case <-timeout:
			t.Fatalf("not ready: %d %s", status, body)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (a *agentTest) wantClean(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(a.cfg.ConfigPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for _, e := range entries {
		t.Errorf("left behind: %s", e.Name())
	}
}

func (a *agentTest) wantLog(t *testing.T, want string) {
	t.Helper()
	got, err := os.ReadFile(a.log)
	if err != nil || string(got) != want {
		t.Errorf("Envoy saw %q, %v, want %q", got, err, want)
	}
}

func TestRunDrainsAndEnds(t *testing.T) {
	for kind, drain := range map[string]string{
		"sidecar": "/drain_listeners?inboundonly&graceful",
		"router":  "/drain_listeners?graceful",
	} {
		t.Run(kind, func(t *testing.T) {
			a := newAgentTest(t, kind, "run")
			a.start(t)
			a.waitReady(t)
			_, metrics := a.get("/metrics")
			if !strings.Contains(metrics, `istio_agent_num_outgoing_requests{request_type="csr"} 1`) || !strings.Contains(metrics, `istio_build{component="proxy",tag="`) ||
				!strings.Contains(metrics, "istio_agent_startup_duration_seconds ") || strings.Contains(metrics, "istio_agent_startup_duration_seconds 0\n") {
				t.Errorf("metrics: %s", metrics)
			}
			if status, _ := a.get("/quitquitquit"); status != http.StatusMethodNotAllowed {
				t.Errorf("/quitquitquit: status %d", status)
			}
			a.stop()
			if err := a.ended(t); err != nil {
				t.Errorf("ended with %v", err)
			}
			a.wantLog(t, "start -rw-------\ndrain "+drain+"\nterminate\n")
			a.wantClean(t)
		})
	}
}

// TestCustomConfigFile: Envoy starts with the bootstrap of the user, which the agent neither writes
// nor removes.
func TestCustomConfigFile(t *testing.T) {
	a := newAgentTest(t, "sidecar", "run")
	a.cfg.CustomConfigFile = filepath.Join(t.TempDir(), "custom.yaml")
	if err := os.WriteFile(a.cfg.CustomConfigFile, []byte("node: {}"), 0o400); err != nil {
		t.Fatal(err)
	}
	a.start(t)
	a.waitReady(t)
	a.stop()
	if err := a.ended(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	a.wantLog(t, "start -r--------\ndrain /drain_listeners?inboundonly&graceful\nterminate\n")
	a.wantClean(t)
	if text, err := os.ReadFile(a.cfg.CustomConfigFile); err != nil || string(text) != "node: {}" {
		t.Errorf("the bootstrap of the user is %q, %v", text, err)
	}
	if err := WriteBootstrap(&a.cfg); err == nil || !strings.Contains(err.Error(), a.cfg.CustomConfigFile) {
		t.Errorf("--dry-run: %v", err)
	}
}

func TestRunEndsWithEnvoy(t *testing.T) {
	a := newAgentTest(t, "sidecar", "fail")
	a.start(t)
	if err := a.ended(t); err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "Address already in use") {
		t.Errorf("ended with %v, want status and cause", err)
	}
	a.wantClean(t)
}

// TestRunWithoutEnvoy writes what applications read, and forwards their streams
// with the workload's certificate. In a pod, applications with other users read it, too.
func TestRunWithoutEnvoy(t *testing.T) {
	t.Run("in a pod", func(t *testing.T) { runWithoutEnvoy(t, true, 0o644, 0o666) })
	t.Run("on a machine", func(t *testing.T) { runWithoutEnvoy(t, false, 0o600, 0o600) })
}

func runWithoutEnvoy(t *testing.T, inPod bool, files, socket fs.FileMode) {
	t.Helper()
	a := newAgentTest(t, "sidecar", "run")
	a.cfg.NoEnvoy, a.cfg.EnvoyPath, a.cfg.InPod = true, "/no/envoy", inPod
	a.cfg.GRPCBootstrap, a.cfg.CertDir = filepath.Join(a.cfg.ConfigPath, "grpc.json"), filepath.Join(a.cfg.ConfigPath, "certs")
	a.start(t)
	a.waitReady(t)
	for file, want := range map[string]fs.FileMode{a.cfg.GRPCBootstrap: files, filepath.Join(a.cfg.CertDir, "key.pem"): files, a.cfg.XDSSocket: socket} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s: %v, want mode %v", file, info.Mode(), want)
		}
	}
	a.stop()
	if err := a.ended(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(a.cfg.XDSSocket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
	if _, err := os.Stat(a.cfg.GRPCBootstrap); err != nil {
		t.Errorf("applications that start before the next agent have no bootstrap: %v", err)
	}
	if _, err := os.Stat(a.log); err == nil {
		t.Error("Envoy was started")
	}
}

func TestRunRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, a *agentTest)
		want  string
	}{
		"no envoy":                 {func(_ *testing.T, a *agentTest) { a.cfg.EnvoyPath = "/no/envoy" }, "--envoy"},
		"no bootstrap of the user": {func(_ *testing.T, a *agentTest) { a.cfg.CustomConfigFile = "/no/file" }, "customConfigFile: stat /no/file"},
		"no root":                  {func(_ *testing.T, a *agentTest) { a.cfg.CARootFile = "none.pem" }, "none.pem"},
		"config path that all may write to": {func(t *testing.T, a *agentTest) {
			chmod(t, a.cfg.ConfigPath, 0o777)
		}, "(--config-path): its mode 0777 lets others write to it"},
		"certificates where a group may write": {func(t *testing.T, a *agentTest) {
			a.cfg.CertDir = t.TempDir()
			chmod(t, a.cfg.CertDir, 0o770)
		}, "(--output-certs): its mode 0770 lets others write to it"},
		"gRPC bootstrap where all may write": {func(t *testing.T, a *agentTest) {
			dir := t.TempDir()
			chmod(t, dir, 0o777)
			a.cfg.GRPCBootstrap = filepath.Join(dir, "grpc-bootstrap.json")
		}, "(--grpc-bootstrap): its mode 0777 lets others write to it"},
		"long path": {func(_ *testing.T, a *agentTest) { a.cfg.SDSSocket += strings.Repeat("/x", 60) }, "107"},
		"status port taken": {func(t *testing.T, a *agentTest) {
			t.Helper()
			l, err := net.Listen("tcp", netip.AddrPortFrom(a.cfg.Listen, a.cfg.StatusPort).String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, "--status-port"},
		"second agent": {func(t *testing.T, a *agentTest) {
			t.Helper()
			if err := os.MkdirAll(filepath.Dir(a.cfg.SDSSocket), 0o700); err != nil {
				t.Fatal(err)
			}
			l, err := net.Listen("unix", a.cfg.SDSSocket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, "in use"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgentTest(t, "sidecar", "run")
			tc.spoil(t, a)
			a.start(t)
			if err := a.ended(t); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if _, err := os.Stat(a.log); err == nil {
				t.Error("Envoy was started")
			}
		})
	}
}

func TestReadiness(t *testing.T) {
	const good = "cluster_manager.cds.update_success: 1\nlistener_manager.lds.update_success: 2\nserver.state: 0\nlistener_manager.workers_started: 1\n"
	var body atomic.Pointer[string]
	admin := fakeAdmin(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, *body.Load()) })
	cert := workloadcert.Status{Certificate: new(workloadcert.Certificate)}
	newServer := func() *statusServer {
		return newStatus(&config.Config{}, admin, nil, sds.New(slog.New(slog.DiscardHandler)), func() workloadcert.Status { return cert }, func() revocation.Status { return revocation.Status{} }, Options{Log: slog.New(slog.DiscardHandler), Now: time.Now})
	}
	for name, tc := range map[string]struct{ stats, want string }{
		"ready":     {good, ""},
		"nothing":   {"", "config not received from XDS server"},
		"rejected":  {"cluster_manager.cds.update_rejected: 1\n", "was rejected: cds updates: 0 successful, 1 rejected; lds updates: 0 successful, 0 rejected"},
		"partly":    {"cluster_manager.cds.update_success: 1\n", "not fully received"},
		"draining":  {strings.Replace(good, "state: 0", "state: 1", 1), "current state is: DRAINING"},
		"odd state": {strings.Replace(good, "state: 0", "state: 9", 1), "current state is: unknown"},
		"no state":  {strings.Replace(good, "server.state: 0", "x", 1), "current state is: unknown"},
		"workers":   {strings.Replace(good, "started: 1", "started: 0", 1), "workers have not yet started"},
	} {
		t.Run(name, func(t *testing.T) {
			body.Store(&tc.stats)
			err := newServer().check(t.Context())
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("latched", func(t *testing.T) {
		s, text := newServer(), good
		body.Store(&text)
		if err := s.check(t.Context()); err != nil {
			t.Fatal(err)
		}
		later := "server.state: 0\nlistener_manager.workers_started: 1\n"
		body.Store(&later)
		if err := s.check(t.Context()); err != nil {
			t.Errorf("a proxy that was configured is taken out of service: %v", err)
		}
		s.terminate()
		if err := s.check(t.Context()); err == nil {
			t.Error("ready while it ends")
		}
	})
	t.Run("no certificate", func(t *testing.T) {
		cert = workloadcert.Status{Err: errors.New("no token")}
		if err := newServer().check(t.Context()); err == nil || !strings.Contains(err.Error(), "no token") {
			t.Errorf("got %v, want the cause", err)
		}
	})
}

// reports is a control plane that passes on health reports.
type reports struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	told chan string
}

func (r *reports) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil
		}
		if req.GetTypeUrl() == xdswire.HealthType {
			r.told <- cmp.Or(req.GetErrorDetail().GetMessage(), "healthy")
		}
	}
}

// TestRunReportsHealth: the application is healthy while its check succeeds and its proxy is
// ready, until the agent ends.
func TestRunReportsHealth(t *testing.T) {
	plane := &reports{told: make(chan string, 10)}
	a := newAgentTest(t, "sidecar", "run", func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, plane) })
	var broken atomic.Bool
	a.cfg.Probe = &probe.Config{
		Timeout: deadline, Period: 10 * time.Millisecond, SuccessThreshold: 1, FailureThreshold: 3,
		Check: func(context.Context) error {
			if broken.Load() {
				return errors.New("broken")
			}
			return nil
		},
	}
	a.start(t)
	until := func(want string) {
		t.Helper()
		for timeout := time.After(deadline); ; {
			select {
			case got := <-plane.told: // at first perhaps that the proxy is not ready
				if got == want {
					return
				}
			case <-timeout:
				t.Fatalf("not told: %q", want)
			}
		}
	}
	until("healthy")
	broken.Store(true)
	until("broken")
	a.stop()
	until(probe.Stopping)
	if err := a.ended(t); err != nil {
		t.Errorf("ended with %v", err)
	}
	if len(plane.told) > 0 {
		t.Errorf("after the last word: %q", <-plane.told)
	}
}

func chmod(t *testing.T, dir string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
}

func TestEnvoyArgs(t *testing.T) {
	cfg := &config.Config{LogLevel: "info,misc:error,upstream:debug", Concurrency: 2, Drain: 45 * time.Second, FileFlushInterval: time.Second, FileFlushMinKB: 8}
	cfg.Local = netip.IPv6Loopback()
	want := "-c f --drain-time-s 45 --drain-strategy immediate --local-address-ip-version v6 --file-flush-interval-msec 1000 " +
		"--disable-hot-restart --allow-unknown-static-fields -l info --component-log-level misc:error,upstream:debug " +
		"--skip-deprecated-logs --file-flush-min-size-kb 8 --concurrency 2"
	if got := strings.Join(envoyArgs(cfg, "f"), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	cfg.DeprecatedLogs = true
	if got := envoyArgs(cfg, "f"); slices.Contains(got, "--skip-deprecated-logs") {
		t.Errorf("with ENVOY_SKIP_DEPRECATED_LOGS=false: %q", got)
	}
}

// TestVolumeOfPod: in a pod the mode of an emptyDir is no fault.
func TestVolumeOfPod(t *testing.T) {
	cfg := &config.Config{ConfigPath: filepath.Join(t.TempDir(), "proxy"), InPod: true}
	chmod(t, cfg.ConfigPath, 0o777)
	if err := checkDirectories(cfg); err != nil {
		t.Error(err)
	}
}
