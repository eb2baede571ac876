package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshctl/meshctl/test/harness"
)

// stopTimeout is from SIGTERM to SIGKILL. An API server with open watches would wait for a
// minute, but has nothing to save.
const stopTimeout = 2 * time.Second

// process is a server of the cluster. It has no goroutine, as goroutines of shared clusters
// would outlive every test.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string // path
}

// run starts a program of the cluster. It dies with this process.
func (c *Cluster) run(name string, args ...string) (*process, error) {
	p := &process{name: name, log: c.path(name + ".log")}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(filepath.Join(c.bin, name), args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// waitReady waits until ready returns nil.
func (p *process) waitReady(ctx context.Context, ready func() error) error {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		if p.ended() {
			return fmt.Errorf("%s ended", p.name)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w", p.name, ctx.Err(), err)
		}
	}
}

// ended reports whether the process has ended by itself.
func (p *process) ended() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err != nil || info.Signo != 0
}

// stop ends the process, if there is one, by force after stopTimeout.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	if p.ended() {
		_ = p.cmd.Wait()
		return fmt.Errorf("%s ended before it was stopped: %v:\n%s", p.name, p.cmd.ProcessState, harness.Tail(p.log))
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	force := time.AfterFunc(stopTimeout, func() { _ = p.cmd.Process.Kill() })
	defer force.Stop()
	_ = p.cmd.Wait() // how it ends is its own business
	return nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// keeper is a process that removes a folder when its stdin is closed: when it is released, or
// when this process ends for any reason.
type keeper struct {
	cmd *exec.Cmd
	end io.Closer
}

func keep(dir string) (*keeper, error) {
	// Dying servers may still write files.
	cmd := exec.Command("sh", "-c", `cat; until rm -rf "$0"; do sleep 0.1; done 2>/dev/null`, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is not for it
	end, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &keeper{cmd, end}, cmd.Start()
}

func (k *keeper) release() error {
	return errors.Join(k.end.Close(), k.cmd.Wait())
}

// port is a free port of 127.0.0.1, held by a socket that never listens: a
// server that shares its port (SO_REUSEPORT) can listen on it, and no other process gets it
// in the meantime.
type port struct {
	fd   int
	addr string // host:port
}

func reserve() (*port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	host := [4]byte{127, 0, 0, 1}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: host}))
	var name unix.Sockaddr
	if err == nil {
		name, err = unix.Getsockname(fd)
	}
	bound, ok := name.(*unix.SockaddrInet4)
	if err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("reserve a port: %w", err), unix.Close(fd))
	}
	return &port{fd, net.JoinHostPort(net.IP(host[:]).String(), strconv.Itoa(bound.Port))}, nil
}

func (p *port) free() error {
	if p == nil {
		return nil
	}
	return unix.Close(p.fd)
}

// request fails when the URL does not answer with 200 OK.
func request(ctx context.Context, client *http.Client, method, url string) error {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, body)
	}
	return nil
}
