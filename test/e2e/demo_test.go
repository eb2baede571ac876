package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/demo"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

// command is meshctl demo as a user runs it, with its own directories for temporary and for
// kept files.
type command struct {
	*exec.Cmd
	temp, state string
	stdout      *bufio.Reader
	stderr      *bytes.Buffer
}

func demoCommand(t *testing.T, args ...string) *command {
	t.Helper()
	c := newCommand(t, harness.ShortDir(t), args...)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdout = bufio.NewReader(out)
	c.start(t)
	return c
}

// newCommand is a command that has not been started and has no stdout.
func newCommand(t *testing.T, temp string, args ...string) *command {
	t.Helper()
	c := &command{temp: temp, state: t.TempDir(), stderr: &bytes.Buffer{}}
	c.Cmd = exec.CommandContext(t.Context(), meshctl, append([]string{"demo", "--envoy", envoy.Path(t)}, args...)...)
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.state, "TMPDIR=" + c.temp, "XDG_STATE_HOME=" + c.state}
	c.Dir = t.TempDir()
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = deadline
	c.Stderr = c.stderr
	return c
}

func (c *command) start(t *testing.T) {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("meshctl demo said:\n%s", c.stderr)
			logAll(t, c.temp, c.state)
		}
	})
}

// waitFor reads the output until a line holds text. At the end of the output
// the test fails.
func (c *command) waitFor(t *testing.T, text string) {
	t.Helper()
	for {
		line, err := c.stdout.ReadString('\n')
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			_ = c.Wait()
			t.Fatalf("the demo ended without %q: %v", text, err)
		}
	}
}

// finish reads the rest of the output and returns it with the exit code.
func (c *command) finish(t *testing.T) (stdout string, code int) {
	t.Helper()
	out, err := io.ReadAll(c.stdout)
	if err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := c.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// logAll shows the ends of all logs below the directories.
func logAll(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".log") {
				return err
			}
			data, err := os.ReadFile(path)
			t.Logf("%s:\n%s", path, data[max(0, len(data)-4096):])
			return err
		})
		if err != nil {
			t.Log(err)
		}
	}
}

func TestDemoOnce(t *testing.T) {
	for _, xds := range []string{"delta", "sotw"} {
		t.Run(xds, func(t *testing.T) {
			keep := filepath.Join(t.TempDir(), "kept")
			c := demoCommand(t, "--once", "--xds", xds, "--keep", keep)
			out, code := c.finish(t)
			if code != 0 {
				logAll(t, keep)
				t.Fatalf("exit code %d:\n%s", code, c.stderr)
			}
			t.Logf("\n%s\n%s", c.stderr, out)
			for _, want := range []string{
				"127.1.0.11:5000", "127.2.0.3:15443", "127.2.0.11:5000", "127.1.0.3:15443",
				"local 127.1.0.11:5000", "gateway 127.2.0.3:15443", "spiffe://cluster.local/ns/sample/sa/client",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in the output", want)
				}
			}
			for _, want := range []string{
				"cluster1/2-mesh.yaml", "cluster1/live/pods.yaml", "cluster2/live/helloworld-endpoints.yaml",
				"ca/root-cert.pem", "ca/cluster1/ca-cert.pem", "issuer/cluster2/jwks.json",
				"logs/cluster1-istiod.log", "logs/cluster2-client.log",
				"config_dumps/cluster1-client.json", "config_dumps/cluster2-istio-eastwestgateway.json",
				"bootstraps/cluster1-client.json", "certificates/cluster1-client.json", "clusters/cluster1-client.json",
			} {
				if info, err := os.Stat(filepath.Join(keep, want)); err != nil || info.Size() == 0 {
					t.Errorf("%s was not kept: %v", want, err)
				}
			}
			keptEndpoints(t, "endpoints", filepath.Join(keep, "clusters", "cluster1-client.json"), "--port", "15443")
			keptEndpoints(t, "eds", filepath.Join(keep, "config_dumps", "cluster1-client.json"), "--port", "15443")
			keptEndpoints(t, "all", filepath.Join(keep, "config_dumps", "cluster1-client.json"))
			noSockets(t, keep)
			noProcessesIn(t, keep)
			emptyDir(t, c.temp)
			emptyDir(t, c.state)
		})
	}
}

// keptEndpoints reads a kept file as the person would.
func keptEndpoints(t *testing.T, command, file string, flags ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), meshctl, append([]string{"pc", command, "-f", file}, flags...)...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "127.2.0.3:15443") {
		t.Errorf("pc %s -f %s: %v:\n%s", command, file, err, out)
	}
}

func noSockets(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			t.Errorf("the socket %s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDemoEndsOnInterrupt(t *testing.T) {
	c := demoCommand(t)
	c.waitFor(t, "until Ctrl-C")
	c.waitFor(t, "cluster1: ")
	if len(processesIn(t, c.temp)) == 0 {
		t.Error("no process runs in the temporary directory: the test looks at the wrong place")
	}
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _, code := c.finish(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	noProcessesIn(t, c.temp)
	emptyDir(t, c.temp)
	noLogs(t, c)
}

// noLogs fails when the demo kept logs.
func noLogs(t *testing.T, c *command) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(c.state, "meshctl", "demo", "logs")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("logs are left: %v", err)
	}
}

func TestDemoEndsWhenAnEnvoyDoes(t *testing.T) {
	c := demoCommand(t)
	c.waitFor(t, "until Ctrl-C")
	signalOne(t, c.temp, "envoy", "cluster1-client", syscall.SIGKILL)
	if _, code := c.finish(t); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	log := filepath.Join(c.state, "meshctl", "demo", "logs", "cluster1-client.log")
	for _, want := range []string{"the proxy of the client of cluster1 ended", log} {
		if !strings.Contains(c.stderr.String(), want) {
			t.Errorf("%q is not in the message:\n%s", want, c.stderr)
		}
	}
	if info, err := os.Stat(log); err != nil || info.Size() == 0 {
		t.Errorf("the log is not there: %v", err)
	}
	noProcessesIn(t, c.temp)
	emptyDir(t, c.temp)
}

// signalOne signals the process of the pod whose program is so named.
func signalOne(t *testing.T, dir, program, pod string, signal syscall.Signal) {
	t.Helper()
	for pid := range processesIn(t, dir) {
		exe, err := os.Readlink(filepath.Join("/proc", pid, "exe"))
		if err != nil || filepath.Base(exe) != program {
			continue
		}
		cwd, err := os.Readlink(filepath.Join("/proc", pid, "cwd"))
		if err != nil || filepath.Base(cwd) != pod {
			continue
		}
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(n, signal); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no %s of %s runs below %s", program, pod, dir)
}

func TestDemoKilledTakesItsProcessesAlong(t *testing.T) {
	c := demoCommand(t)
	c.waitFor(t, "until Ctrl-C")
	if n := len(processesIn(t, c.temp)); n < 14 { // 2 control planes, 6 agents, 6 Envoys
		t.Errorf("%d processes run in the temporary directory, want 14", n)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.finish(t)
	eventually(t, "all children end", func() error {
		if left := processesIn(t, c.temp); len(left) > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
	left, err := filepath.Glob(filepath.Join(c.temp, "*"))
	if err != nil || len(left) != 1 {
		t.Fatalf("%v are left of the demo (%v), want its run directory", left, err)
	}

	// The next demo clears that away, even one that then cannot start.
	var l net.Listener
	eventually(t, "the threads of the dead Envoy let go of its port", func() (err error) {
		l, err = net.Listen("tcp", "127.1.0.3:15443")
		return err
	})
	defer l.Close()
	next := newCommand(t, c.temp, "--once")
	next.start(t)
	_ = next.Wait()
	if want := "removed " + left[0] + ", which a killed demo had left\n"; !strings.Contains(next.stderr.String(), want) {
		t.Errorf("%q is not in the message:\n%s", want, next.stderr)
	}
	emptyDir(t, c.temp)
}

// TestDemoEndsOnSecondInterrupt lets an agent hang, so that the end takes long.
func TestDemoEndsOnSecondInterrupt(t *testing.T) {
	c := demoCommand(t)
	c.waitFor(t, "until Ctrl-C")
	signalOne(t, c.temp, "meshctl", "cluster1-client", syscall.SIGSTOP)
	before := len(processesIn(t, c.temp))
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the demo is ending", func() error {
		if now := len(processesIn(t, c.temp)); now >= before {
			return fmt.Errorf("%d of %d processes run", now, before)
		}
		return nil
	})
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _, code := c.finish(t); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	said := c.stderr.String()
	if !strings.HasSuffix(said, "all processes ended or killed, all files removed\nError: interrupted\n") || strings.Contains(said, "did not end") {
		t.Errorf("it said:\n%s", said)
	}
	emptyDir(t, c.temp)
	noLogs(t, c)
	eventually(t, "all processes end", func() error {
		if left := processesIn(t, c.temp); len(left) > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
}

// TestDemoInterruptedBeforeItIsUp interrupts at the steps of the start and in
// the check: none of it may be taken for a failure.
func TestDemoInterruptedBeforeItIsUp(t *testing.T) {
	for name, step := range map[string]func(*testing.T, *command){
		"control planes start": func(t *testing.T, c *command) { c.waitForProcess(t, "serve") },
		"agents start":         func(t *testing.T, c *command) { c.waitForProcess(t, "agent") },
		"pc endpoints":         func(t *testing.T, c *command) { c.waitFor(t, "may choose from") },
		"check":                func(t *testing.T, c *command) { c.waitFor(t, "127.2.0.11:5000") },
	} {
		t.Run(name, func(t *testing.T) {
			c := demoCommand(t, "--once", "--requests", "1000000")
			step(t, c)
			if err := c.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
			if _, code := c.finish(t); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			said := c.stderr.String()
			if !strings.HasSuffix(said, "\nError: interrupted\n") || strings.Count(said, "Error") != 1 {
				t.Errorf("it said:\n%s", said)
			}
			noProcessesIn(t, c.temp)
			emptyDir(t, c.temp)
			noLogs(t, c)
		})
	}
}

// waitForProcess waits until the demo runs meshctl with this first argument.
func (c *command) waitForProcess(t *testing.T, argument string) {
	t.Helper()
	eventually(t, "meshctl "+argument+" runs", func() error {
		for _, line := range processesIn(t, c.temp) {
			if strings.Contains(line, "meshctl "+argument+" ") {
				return nil
			}
		}
		return errors.New("not yet")
	})
}

func TestDemoNamesThePortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.1.0.3:15443")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := demoCommand(t, "--once")
	if _, code := c.finish(t); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	want := "127.1.0.3:15443 is in use, but the east-west gateway of cluster1"
	if !strings.Contains(c.stderr.String(), want) {
		t.Errorf("%q is not in the message:\n%s", want, c.stderr)
	}
	emptyDir(t, c.temp)
	emptyDir(t, c.state)
}

func TestDemoNamesAnotherDemo(t *testing.T) {
	first := demoCommand(t)
	first.waitFor(t, "until Ctrl-C")
	second := demoCommand(t, "--once")
	if _, code := second.finish(t); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if want := "Error: another demo seems to run on this machine: stop it first"; !strings.Contains(second.stderr.String(), want) {
		t.Errorf("%q is not in the message:\n%s", want, second.stderr)
	}
	emptyDir(t, second.temp)
	if err := first.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _, code := first.finish(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// startMesh runs the demo's mesh inside the test.
func startMesh(t *testing.T, sotw bool) *demo.Mesh {
	t.Helper()
	dir := filepath.Join(harness.ShortDir(t), "demo")
	m, err := demo.Start(t.Context(), demo.Options{
		Program: meshctl, Envoy: envoy.Path(t), Dir: dir, SotW: sotw,
		Rand: rand.Reader, Now: time.Now, LookupEnv: os.LookupEnv,
		Done: func(step string) { t.Log(step) },
	})
	if err != nil {
		logAll(t, dir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logAll(t, dir)
		}
		if err := m.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		noProcessesIn(t, dir)
		noSockets(t, dir)
	})
	return m
}

func TestDemoMesh(t *testing.T) {
	for _, sotw := range []bool{false, true} {
		name := "delta"
		if sotw {
			name = "sotw"
		}
		t.Run(name, func(t *testing.T) {
			m := startMesh(t, sotw)
			t.Run("everything sent is accepted", func(t *testing.T) { everythingAccepted(t, m) })
			t.Run("an endpoint that leaves and returns", func(t *testing.T) { endpointLeavesAndReturns(t, m) })
			t.Run("a broken file", func(t *testing.T) { brokenFile(t, m) })
			t.Run("everything sent later is accepted", func(t *testing.T) { everythingAccepted(t, m) })
		})
	}
}

// traffic sends requests of all clients until it is stopped.
type traffic struct {
	quit func() // may be called more than once
	done sync.WaitGroup

	mu     sync.Mutex
	last   map[string]time.Time // when a version last answered any client
	total  int
	failed []error
}

func startTraffic(t *testing.T, m *demo.Mesh) *traffic {
	t.Helper()
	quit := make(chan struct{})
	tr := &traffic{quit: sync.OnceFunc(func() { close(quit) }), last: map[string]time.Time{}}
	for _, c := range m.Clients() {
		tr.done.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-quit:
					return
				case <-tick.C:
				}
				a, err := c.Get(context.WithoutCancel(t.Context()))
				tr.mu.Lock()
				tr.total++
				if err != nil {
					tr.failed = append(tr.failed, err)
				} else {
					tr.last[a.Version] = time.Now()
				}
				tr.mu.Unlock()
			}
		})
	}
	t.Cleanup(tr.stop)
	return tr
}

// stop waits for pending responses. An aborted request might reach Envoy later and be counted
// in a check.
func (tr *traffic) stop() {
	tr.quit()
	tr.done.Wait()
}

func (tr *traffic) snapshot() (total, failed int, last map[string]time.Time) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.total, len(tr.failed), maps.Clone(tr.last)
}

func endpointLeavesAndReturns(t *testing.T, m *demo.Mesh) {
	file := m.EndpointFile("cluster1")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tr := startTraffic(t, m)
	eventually(t, "both versions answer", func() error {
		if _, _, last := tr.snapshot(); len(last) < 2 {
			return fmt.Errorf("%d versions answer", len(last))
		}
		return nil
	})

	removed := time.Now()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	// v1 is gone when many answers of v2 came without one of v1 among them.
	var base int
	var lastV1 time.Time
	eventually(t, "all traffic goes to v2", func() error {
		total, _, last := tr.snapshot()
		if !last["v1"].Equal(lastV1) {
			lastV1, base = last["v1"], total
		}
		if total-base < 60 {
			return fmt.Errorf("v1 answered %d requests ago", total-base)
		}
		return nil
	})
	t.Logf("the last answer of v1 came %s after its endpoint file was removed", max(0, lastV1.Sub(removed).Round(time.Millisecond)))

	returned := time.Now()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	var backV1 time.Time
	eventually(t, "v1 answers again", func() error {
		_, _, last := tr.snapshot()
		if backV1 = last["v1"]; !backV1.After(returned) {
			return errors.New("no answer of v1")
		}
		return nil
	})
	t.Logf("v1 answered again %s after the file was back", backV1.Sub(returned).Round(time.Millisecond))
	tr.stop()
	if len(tr.failed) > len(m.Clients()) { // one request of each was in flight
		t.Errorf("%d of %d requests failed, the first: %v", len(tr.failed), tr.total, tr.failed[0])
	}
	checkMesh(t, m)
}

// checkMesh runs the demo's own check.
func checkMesh(t *testing.T, m *demo.Mesh) {
	t.Helper()
	results, err := m.Check(t.Context(), 200)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		for _, problem := range r.Problems() {
			t.Error(problem)
		}
	}
}

func brokenFile(t *testing.T, m *demo.Mesh) {
	log := m.ControlPlaneLog("cluster1")
	before, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.Dir("cluster1"), "broken.yaml")
	const text = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata:
  name: broken
  namespace: istio-system
spec:
  servers:
    - port:
        number: many
`
	tr := startTraffic(t, m)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log names file, line and reason", func() error {
		after, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(after[len(before):])) {
			if strings.Contains(line, "file="+file+" line=9 ") && strings.Contains(line, "spec.servers[0].port.number") {
				t.Log(strings.TrimSpace(line))
				return nil
			}
		}
		return fmt.Errorf("it says:\n%s", after[len(before):])
	})
	total, _, _ := tr.snapshot()
	eventually(t, "the traffic goes on", func() error {
		if now, _, _ := tr.snapshot(); now < total+100 {
			return fmt.Errorf("%d requests since", now-total)
		}
		return nil
	})
	tr.stop()
	checkMesh(t, m)
	if len(tr.failed) > 0 {
		t.Errorf("%d of %d requests failed, the first: %v", len(tr.failed), tr.total, tr.failed[0])
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}
