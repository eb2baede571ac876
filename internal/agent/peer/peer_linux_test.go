package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/meshctl/meshctl/internal/serving"
	"github.com/meshctl/meshctl/test/harness"
)

const deadline = 2 * time.Minute

// The test's own program plays Envoy and other processes. Its standard input has commands, one a
// line; it answers each with a line.
const envProcess = "MESHCTL_TEST_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(envProcess) != "" {
		commands := bufio.NewScanner(os.Stdin)
		for commands.Scan() {
			fmt.Println(do(strings.Fields(commands.Text())))
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// do runs a command: what to do, the address, and perhaps the address to call from.
func do(command []string) string {
	dialer := net.Dialer{Timeout: deadline}
	if len(command) > 2 {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(command[2])}
	}
	if command[0] == "mapped" { // over a socket of IPv6
		return mapped(netip.MustParseAddrPort(command[1]))
	}
	conn, err := dialer.Dial("tcp", command[1])
	if err != nil {
		return err.Error()
	}
	switch command[0] {
	case "hold":
		held = append(held, conn)
	case "get":
		return get(conn)
	case "leave", "reset":
		if tcp, ok := conn.(*net.TCPConn); ok && command[0] == "reset" {
			err = tcp.SetLinger(0)
		}
		_, writeErr := conn.Write([]byte("POST /quitquitquit HTTP/1.1\r\nHost: localhost\r\n\r\n"))
		err = errors.Join(err, writeErr, conn.Close())
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}

// held keeps connections open.
var held []net.Conn

func get(conn net.Conn) string {
	defer conn.Close()
	_, _ = conn.Write([]byte("GET / HTTP/1.0\r\n\r\n"))
	answer, err := io.ReadAll(conn)
	status, _, _ := strings.Cut(string(answer), "\r\n")
	if err != nil && status == "" {
		return err.Error()
	}
	return "answer " + status
}

func mapped(at netip.AddrPort) string {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())})
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}

// process is another process.
type process struct {
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Reader
}

// startProcess starts a process that leads a process group. With a script, sh leads the group, and
// the process is its child.
func startProcess(t *testing.T, script string, attributes syscall.SysProcAttr) *process {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // it ends with its input
	cmd := exec.CommandContext(ctx, os.Args[0])
	if script != "" {
		cmd = exec.CommandContext(ctx, "sh", "-c", script, os.Args[0])
	}
	attributes.Setpgid = true
	cmd.SysProcAttr = &attributes
	cmd.Env = append(os.Environ(), envProcess+"=1")
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() {
		check(t, in.Close())
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &process{cmd, in, bufio.NewReader(out)}
}

// do lets the process run a command, and returns its answer.
func (p *process) do(t *testing.T, command ...string) string {
	t.Helper()
	_, err := fmt.Fprintln(p.in, strings.Join(command, " "))
	check(t, err)
	line, err := p.lines.ReadString('\n')
	check(t, err)
	return strings.TrimSpace(line)
}

// accepted lets the process run a command at a listener, and returns the connection there.
func (p *process) accepted(t *testing.T, l net.Listener, what, at string, from ...string) net.Conn {
	t.Helper()
	if got := p.do(t, append([]string{what, at}, from...)...); got != "ok" {
		t.Fatalf("%s %s: %s", what, at, got)
	}
	conn, err := l.Accept()
	check(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listen returns a listener of any IP version, and its addresses for IPv4 and IPv6.
func listen(t *testing.T) (l net.Listener, at4, at6 string) {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	check(t, err)
	return l, "127.0.0.1:" + port, "[::1]:" + port
}

func newGuard(t *testing.T, envoy *process) *Guard {
	t.Helper()
	g := New(slog.New(slog.NewTextHandler(t.Output(), nil)))
	g.Started(envoy.cmd.Process.Pid)
	return g
}

// TestCheck: connections of the process group of Envoy are told from connections of others, at
// sockets of both IP versions.
func TestCheck(t *testing.T) {
	t.Parallel()
	envoy, other := startProcess(t, "", syscall.SysProcAttr{}), startProcess(t, "", syscall.SysProcAttr{})
	script := startProcess(t, `"$0"; true`, syscall.SysProcAttr{})
	l, at4, at6 := listen(t)
	l4, err := net.Listen("tcp4", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { _ = l4.Close() })
	for _, tc := range []struct {
		listener net.Listener
		command  []string
	}{
		{l4, []string{"hold", l4.Addr().String()}},
		{l4, []string{"hold", l4.Addr().String(), "127.0.0.6"}},
		{l4, []string{"mapped", l4.Addr().String()}},
		{l, []string{"hold", at4}},
		{l, []string{"hold", at4, "127.0.0.6"}},
		{l, []string{"mapped", at4}},
		{l, []string{"hold", at6}},
	} {
		for _, by := range []*process{envoy, other, script} {
			conn := by.accepted(t, tc.listener, tc.command[0], tc.command[1], tc.command[2:]...)
			for _, proxy := range []*process{envoy, other, script} {
				if err := newGuard(t, proxy).Check(conn); proxy == by && !errors.Is(err, ErrForwarded) || proxy != by && err != nil {
					t.Errorf("%v at %s: Envoy itself: %t: %v", tc.command, tc.listener.Addr(), proxy == by, err)
				}
			}
		}
	}
}

// TestCheckOfOwnProcess: the agent itself is not Envoy.
func TestCheckOfOwnProcess(t *testing.T) {
	t.Parallel()
	g := newGuard(t, startProcess(t, "", syscall.SysProcAttr{}))
	l, at4, _ := listen(t)
	conn, err := net.Dial("tcp", at4)
	check(t, err)
	defer conn.Close()
	accepted, err := l.Accept()
	check(t, err)
	defer accepted.Close()
	if err := g.Check(accepted); err != nil {
		t.Error(err)
	}
	if err := g.Check(struct{ net.Conn }{accepted}); err == nil {
		t.Error("a connection whose state is not known is accepted")
	}
	g.Starting()
	if err := g.Check(accepted); err == nil {
		t.Error("while Envoy starts, a connection is accepted")
	}
	if err := New(nil).Check(accepted); err != nil {
		t.Errorf("without an Envoy: %v", err)
	}
}

// TestCheckOfClosedConnections: a connection whose other end was closed or reset may have been
// Envoy's, so it is refused, even if its data has arrived.
func TestCheckOfClosedConnections(t *testing.T) {
	t.Parallel()
	envoy, other := startProcess(t, "", syscall.SysProcAttr{}), startProcess(t, "", syscall.SysProcAttr{})
	l, at4, at6 := listen(t)
	for _, what := range []string{"leave", "reset"} {
		for _, at := range []string{at4, at6} {
			for _, by := range []*process{envoy, other} {
				conn := by.accepted(t, l, what, at)
				if err := newGuard(t, envoy).Check(conn); err == nil {
					t.Errorf("%s %s: it is accepted", what, at)
				}
			}
		}
	}
}

// TestCheckIsNotPassedByHaste: Envoy never passes by closing while the check runs.
func TestCheckIsNotPassedByHaste(t *testing.T) {
	t.Parallel()
	envoy := startProcess(t, "", syscall.SysProcAttr{})
	g := newGuard(t, envoy)
	l, at4, _ := listen(t)
	done := make(chan error, 1)
	const calls = 3000
	go func() {
		for range calls {
			conn, err := l.Accept()
			if err != nil {
				done <- err
				return
			}
			err = g.Check(conn)
			conn.Close()
			if err == nil {
				done <- errors.New("a connection of Envoy is accepted")
				return
			}
		}
		done <- nil
	}()
	for i := range calls {
		if got := envoy.do(t, []string{"leave", "reset"}[i%2], at4); got != "ok" && !strings.Contains(got, "reset") && !strings.Contains(got, "pipe") {
			t.Fatal(got)
		}
	}
	check(t, <-done)
}

// TestCheckWithoutProc: local connections are refused if the file system proc does not show Envoy.
func TestCheckWithoutProc(t *testing.T) {
	t.Parallel()
	envoy, other := startProcess(t, "", syscall.SysProcAttr{}), startProcess(t, "", syscall.SysProcAttr{})
	l, at4, _ := listen(t)
	conn := other.accepted(t, l, "hold", at4)
	g := newGuard(t, envoy)
	for name, want := range map[string]string{
		t.TempDir():                           "does not show the processes of this PID namespace",
		ofOther(t, ""):                        "does not show the processes of this PID namespace",
		ofOther(t, strconv.Itoa(os.Getpid())): "does not show the proxy",
	} {
		g.proc = name
		if err := g.Check(conn); err == nil || errors.Is(err, ErrForwarded) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// ofOther returns a directory like proc, with one process.
func ofOther(t *testing.T, self string) string {
	t.Helper()
	dir := t.TempDir()
	if self == "" {
		self = "1"
	}
	check(t, os.Mkdir(dir+"/"+self, 0o700))
	check(t, os.WriteFile(dir+"/"+self+"/stat", []byte(self+" (x) y) S 0 "+self+" 0"), 0o600))
	check(t, os.Symlink(self, dir+"/self"))
	return dir
}

// TestHandler: only requests that Envoy forwards get status 403.
func TestHandler(t *testing.T) {
	t.Parallel()
	envoy, other := startProcess(t, "", syscall.SysProcAttr{}), startProcess(t, "", syscall.SysProcAttr{})
	g := newGuard(t, envoy)
	l, at4, at6 := listen(t)
	handler := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }))
	server := &http.Server{Handler: handler, ConnContext: KeepConnection, ReadHeaderTimeout: deadline}
	served := make(chan error, 1)
	go func() { served <- serving.HTTP(t.Context(), server, l) }()
	t.Cleanup(func() { check(t, <-served) })
	for _, at := range []string{at4, at6} {
		if got := envoy.do(t, "get", at); got != "answer HTTP/1.0 403 Forbidden" {
			t.Errorf("through Envoy: %s", got)
		}
		if got := other.do(t, "get", at); got != "answer HTTP/1.0 200 OK" {
			t.Errorf("from another process: %s", got)
		}
	}
}

// TestListener: nothing is read from a connection of Envoy.
func TestListener(t *testing.T) {
	t.Parallel()
	envoy, other := startProcess(t, "", syscall.SysProcAttr{}), startProcess(t, "", syscall.SysProcAttr{})
	l, at4, _ := listen(t)
	server := &http.Server{ReadHeaderTimeout: deadline, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })}
	served := make(chan error, 1)
	go func() { served <- serving.HTTP(t.Context(), server, newGuard(t, envoy).Listener(l)) }()
	t.Cleanup(func() { check(t, <-served) })
	if got := other.do(t, "get", at4); got != "answer HTTP/1.0 200 OK" {
		t.Errorf("from another process: %s", got)
	}
	if got := envoy.do(t, "get", at4); strings.Contains(got, "HTTP") {
		t.Errorf("through Envoy: %s", got)
	}
}

// TestCheckInAPod: the addresses of a pod are local, and a peer on another machine is not.
func TestCheckInAPod(t *testing.T) {
	if !harness.RunsInOwnNetwork(t, "peers of a pod", []string{"ip"}) {
		return
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	envoy, other := startProcess(t, "", syscall.SysProcAttr{}), startProcess(t, "", syscall.SysProcAttr{})
	machine := startProcess(t, "", syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET})
	pid := strconv.Itoa(machine.cmd.Process.Pid)
	run("ip", "link", "set", "lo", "up")
	run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", pid)
	run("ip", "address", "add", "10.9.0.1/24", "dev", "eth0")
	run("ip", "address", "add", "fd09::1/64", "dev", "eth0", "nodad")
	run("ip", "address", "add", "::6/128", "dev", "lo", "nodad")
	run("ip", "link", "set", "eth0", "up")
	inside := func(args ...string) { run(append([]string{"nsenter", "--net=/proc/" + pid + "/ns/net"}, args...)...) }
	inside("ip", "address", "add", "10.9.0.2/24", "dev", "eth0")
	inside("ip", "address", "add", "fd09::2/64", "dev", "eth0", "nodad")
	inside("ip", "link", "set", "eth0", "up")

	l, at4, at6 := listen(t)
	g := newGuard(t, envoy)
	_, port, err := net.SplitHostPort(l.Addr().String())
	check(t, err)
	for _, at := range []string{"10.9.0.1:" + port, "[fd09::1]:" + port} {
		for _, what := range []string{"hold", "leave"} {
			if err := g.Check(machine.accepted(t, l, what, at)); err != nil {
				t.Errorf("%s %s from another machine: %v", what, at, err)
			}
		}
	}
	for at, from := range map[string][]string{
		"10.9.0.1:" + port: {"10.9.0.1", "127.0.0.1"}, "[fd09::1]:" + port: {"fd09::1", "::6"}, at4: {"10.9.0.1", "127.0.0.6"}, at6: {"fd09::1", "::6"},
	} {
		for _, from := range from {
			if err := g.Check(envoy.accepted(t, l, "hold", at, from)); !errors.Is(err, ErrForwarded) {
				t.Errorf("Envoy to %s from %s: %v", at, from, err)
			}
			if err := g.Check(envoy.accepted(t, l, "leave", at, from)); err == nil {
				t.Errorf("Envoy to %s from %s, closed: it is accepted", at, from)
			}
			if err := g.Check(other.accepted(t, l, "hold", at, from)); err != nil {
				t.Errorf("another process to %s from %s: %v", at, from, err)
			}
		}
	}
}
