package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/harness"
)

// process is a server under load: a meshctl or the yardstick.
type process struct {
	cmd      *exec.Cmd
	log      harness.LogBuffer
	commands io.WriteCloser // see serveProfiled; nil without profiles
}

func startProcess(ctx context.Context, binary string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, binary, args...)}
	p.cmd.Stderr = &p.log
	var err error
	if len(args) > 0 && args[0] == "-serve-profiled" {
		if p.commands, err = p.cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	return p, nil
}

// phase names the current phase in profiles.
func (p *process) phase(name string) {
	if p.commands != nil {
		_, _ = io.WriteString(p.commands, name+"\n") // profiles are optional
	}
}

// stop ends the process, by force after 20 seconds.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	timer := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	return p.cmd.Wait()
}

// end stops the process at the end of a measurement and adds the log to its error.
func (p *process) end(err *error) {
	if *err != nil {
		*err = fmt.Errorf("%w\nthe log of the server:\n%s", *err, p.log.String())
	}
	*err = errors.Join(*err, p.stop())
}

// kill ends the process as kill -9 does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// usage is the resource usage of a process so far.
type usage struct {
	cpu  float64 // seconds
	rss  float64 // bytes
	anon float64 // bytes of rss that are not pages of files, such as the program
}

func (p *process) usage() (usage, error) {
	cpu, err := p.cpu()
	if err != nil {
		return usage{}, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return usage{}, err
	}
	bytes := func(name string) (float64, error) {
		_, rest, _ := strings.Cut(string(status), name+":")
		kib, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		v, err := strconv.ParseFloat(kib, 64)
		return v * 1024, err
	}
	rss, err := bytes("VmRSS")
	anon, err2 := bytes("RssAnon")
	return usage{cpu, rss, anon}, errors.Join(err, err2)
}

// cpu returns the CPU time of all threads, to the nanosecond: the counters of /proc have
// ticks of 10 ms, more than one change costs.
func (p *process) cpu() (float64, error) {
	const cpuclockSched = 2 // the kernel's clock of a process, see clock_getcpuclockid(3)
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|cpuclockSched), &ts); err != nil {
		return 0, fmt.Errorf("read the CPU clock of a process: %w", err)
	}
	return time.Duration(ts.Nano()).Seconds(), nil
}

// ownCPU returns the CPU time of this process, in seconds.
func ownCPU() float64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts) // cannot fail
	return time.Duration(ts.Nano()).Seconds()
}

// settled returns the usage when the process is idle: it has used less than 2 % of a processor
// for 50 ms.
func (p *process) settled(ctx context.Context) (usage, error) {
	const pause, idle = 50 * time.Millisecond, 0.001
	last, err := p.cpu()
	for err == nil {
		select {
		case <-ctx.Done():
			return usage{}, ctx.Err()
		case <-time.After(pause):
		}
		var now float64
		if now, err = p.cpu(); err == nil && now-last < idle {
			return p.usage()
		}
		last = now
	}
	return usage{}, err
}

// meshctl is a control plane under load.
type meshctl struct {
	*process
	binary, profiles, config, state string
	plain, secure, http, metrics    string
	source                          []string      // arguments that say where the mesh is
	args                            []string      // more of serve
	ready                           time.Duration // from start until /ready succeeded
	atReady                         usage
}

// newMeshctl chooses ports, on which start may start the server several times.
func newMeshctl(binary, profiles, dir, config string, args ...string) (*meshctl, error) {
	addrs, err := harness.FindAddrs(4)
	if err != nil {
		return nil, err
	}
	return &meshctl{
		binary: binary, profiles: profiles, config: config, state: filepath.Join(dir, "state"), args: args,
		source: []string{"--config-dir", config},
		plain:  addrs[0], secure: addrs[1], http: addrs[2], metrics: addrs[3],
	}, nil
}

func (m *meshctl) start(ctx context.Context) (err error) {
	binary, args := m.binary, []string(nil)
	if m.profiles != "" {
		if binary, err = os.Executable(); err != nil {
			return err
		}
		args = []string{"-serve-profiled", m.profiles, "--"}
	}
	args = append(args, "serve", "--state-dir", m.state,
		"--grpc-addr", m.plain, "--secure-grpc-addr", m.secure, "--http-addr", m.http, "--monitoring-addr", m.metrics)
	args = append(append(args, m.source...), m.args...)
	start := time.Now()
	p, err := startProcess(ctx, binary, args...)
	if err != nil {
		return fmt.Errorf("%w (run 'make build' first)", err)
	}
	m.process = p
	m.phase("start")
	for {
		resp, err := http.Get("http://" + m.http + "/ready")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				m.ready = time.Since(start)
				m.atReady, err = m.usage()
				return err
			}
		}
		if time.Since(start) > time.Minute {
			_ = m.stop()
			return fmt.Errorf("the server is not ready after a minute:\n%s", m.log.String())
		}
		time.Sleep(time.Millisecond)
	}
}

// counters returns the metrics of the server, summed over labels.
func (m *meshctl) counters() (map[string]float64, error) {
	resp, err := http.Get("http://" + m.metrics + "/metrics")
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	sums := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		end := strings.LastIndex(line, " ") // labels may have spaces
		if end < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		name := line[:end]
		v, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %q: %w", line, err)
		}
		name, _, _ = strings.Cut(name, "{")
		sums[name] += v
	}
	return sums, nil
}

// clientConfig returns the TLS configuration of clients. With a namespace they have a certificate of
// its default service account.
func (m *meshctl) clientConfig(namespace string) (*tls.Config, error) {
	ca, _, err := store.LoadOrCreate(m.state, mesh.DefaultTrustDomain, time.Now(), rand.Reader)
	if err != nil {
		return nil, err
	}
	var own []tls.Certificate
	if namespace != "" {
		key, err := certs.GenerateKey(certs.ECDSAP256)
		if err != nil {
			return nil, err
		}
		id := mesh.Identity{TrustDomain: mesh.DefaultTrustDomain, Namespace: namespace, ServiceAccount: "default"}
		leaf, err := ca.SignLeaf(key.Public(), mesh.Caller{Identity: id}, time.Hour, time.Now(), rand.Reader)
		if err != nil {
			return nil, err
		}
		own = []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}
	}
	return dial.TLSConfig(certs.EncodeCerts(ca.Roots...), serverName, own...)
}
