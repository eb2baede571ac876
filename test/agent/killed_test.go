package agent

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// program is a running meshctl agent.
type program struct {
	running
	cmd *exec.Cmd
	log harness.LogBuffer
}

// run starts meshctl agent with the flags and more arguments, in the directory dir or, if it is empty,
// in the directory of the test.
func run(t *testing.T, f agentconfig.Flags, dir string, more ...string) *program {
	t.Helper()
	p := &program{running: running{done: make(chan error, 1), http: dial.HTTPClient(deadline, nil)}}
	args := []string{
		"agent",
		"--pod-name", f.PodName, "--pod-namespace", f.PodNamespace, "--service-account", f.ServiceAccount,
		"--bind-address", f.BindAddress, "--discovery-address", f.DiscoveryAddress, "--token", f.Token,
		"--config-path", f.ConfigPath, "--envoy", f.Envoy, "--concurrency", "1", "--termination-drain-duration", "0s",
	}
	if f.RootCA != "" {
		args = append(args, "--root-ca", f.RootCA)
	}
	p.cmd = exec.CommandContext(t.Context(), meshctl, append(args, more...)...)
	p.cmd.Dir = dir
	p.start(t)
	return p
}

// start starts the program, and waits until its proxy is ready.
func (p *program) start(t *testing.T) {
	t.Helper()
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		p.http.CloseIdleConnections()
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	p.waitReady(t)
}

var startedEnvoy = regexp.MustCompile(`msg="started envoy" pid=(\d+)`)

// envoy returns the process ID of Envoy.
func (p *program) envoy(t *testing.T) int {
	t.Helper()
	found := startedEnvoy.FindStringSubmatch(p.log.String())
	if found == nil {
		t.Fatal("the log has no process ID of Envoy")
	}
	pid, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestKilled: when Envoy is killed, the agent ends with the reason; when the agent is killed,
// Envoy ends, and the next agent starts with the files that it left.
func TestKilled(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	ca.Serve(t, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, &controlPlane{})
	})
	dir := harness.ShortDir(t)
	flags := flagsFor(t, ca, dir)

	p := run(t, flags, "")
	if err := syscall.Kill(p.envoy(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.ended(t); p.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("the agent ended with %v, want exit code 1", err)
	}
	if log := p.log.String(); !strings.Contains(log, "Error: envoy ended: signal: killed") {
		t.Errorf("the agent does not report why it ends: %s", log)
	}
	wantEmpty(t, flags.ConfigPath)

	p = run(t, flags, "")
	orphan := p.envoy(t)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.ended(t); err == nil {
		t.Error("a killed agent ended well")
	}
	harness.Eventually(t, deadline, "the end of Envoy", func() error {
		if err := syscall.Kill(orphan, 0); !errors.Is(err, syscall.ESRCH) && !isZombie(orphan) {
			return errors.New("Envoy lives")
		}
		return nil
	})

	p = run(t, flags, "")
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.ended(t); err != nil {
		t.Errorf("the agent ended with %v on SIGTERM", err)
	}
	wantEmpty(t, flags.ConfigPath)
}

// TestSecondSignal: a second signal ends a draining agent at once, by the signal itself, and Envoy with
// it.
func TestSecondSignal(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	ca.Serve(t, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, &controlPlane{})
	})
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := run(t, flagsFor(t, ca, harness.ShortDir(t)), "", "--termination-drain-duration", "1h")
		envoy := p.envoy(t)
		if err := p.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		p.wait(t, "draining", func() bool { return strings.Contains(p.log.String(), "draining envoy") })
		if err := p.cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		err := p.ended(t)
		if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != signal {
			t.Errorf("%v: the agent ended with %v", signal, err)
		}
		harness.Eventually(t, deadline, "the end of Envoy", func() error {
			if err := syscall.Kill(envoy, 0); !errors.Is(err, syscall.ESRCH) && !isZombie(envoy) {
				return errors.New("Envoy lives")
			}
			return nil
		})
	}
}

// TestHomeOfAnotherUser: an agent whose HOME belongs to another user runs without a configuration
// file, and reports a file that it may not read.
func TestHomeOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run a program as another user")
	}
	dir := harness.ShortDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(meshctl)
	if err != nil {
		t.Fatal(err)
	}
	program, home := filepath.Join(dir, "meshctl"), filepath.Join(dir, "home")
	config := filepath.Join(home, ".config", "meshctl", "config.yaml")
	if err := errors.Join(os.WriteFile(program, data, 0o755), os.MkdirAll(filepath.Dir(config), 0o755), os.WriteFile(config, []byte("output: json\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	version := func() (stdout, stderr string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), program, "version")
		var out, errors strings.Builder
		cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, []string{"HOME=" + home}, &out, &errors
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1337, Gid: 1337}}
		if err := cmd.Run(); err != nil {
			t.Errorf("%v: %s", err, errors.String())
		}
		return out.String(), errors.String()
	}
	if out, warning := version(); !strings.HasPrefix(out, "meshctl ") || !strings.Contains(warning, "Warning: configuration file: open "+config+": permission denied; the command runs without it") {
		t.Errorf("a file of root: %q, %q", out, warning)
	}
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, warning := version(); !strings.HasPrefix(out, "meshctl ") || warning != "" {
		t.Errorf("a directory of root: %q, %q", out, warning)
	}
}

// TestRequest: agent wait ends when the proxy is ready, and agent request changes the log level
// of the running Envoy, reads a profile of the agent and ends it.
func TestRequest(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	ca.Serve(t, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, &controlPlane{})
	})
	p := run(t, flagsFor(t, ca, harness.ShortDir(t)), "", "--profiling")
	command := func(want int, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), meshctl, append([]string{"agent"}, args...)...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != want {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	command(0, "wait", "--url", "http://"+bind+":15021/healthz/ready")
	if out := command(0, "request", "--bind-address", bind, "POST", "logging?paths=http:debug"); !strings.Contains(out, "http: debug") {
		t.Errorf("log levels: %s", out)
	}
	if out := command(1, "request", "--bind-address", bind, "GET", "/none"); !strings.Contains(out, "received unsuccessful status code 404") {
		t.Errorf("a page that does not exist: %s", out)
	}
	if out := command(0, "request", "--bind-address", bind, "--debug-port", "15020", "GET", "debug/pprof/goroutine?debug=1"); !strings.Contains(out, "goroutine profile: total ") {
		t.Errorf("a profile: %s", out)
	}
	command(0, "request", "--bind-address", bind, "--debug-port", "15020", "post", "/quitquitquit")
	if err := p.ended(t); err != nil {
		t.Errorf("the agent ended with %v on /quitquitquit", err)
	}
}

// isZombie reports whether a process has ended, in a container whose first process does not
// collect it.
func isZombie(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, f := range left {
		t.Errorf("left behind: %s", f.Name())
	}
}
