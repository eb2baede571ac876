// Package harness holds helpers that tests of several packages need: it builds meshctl,
// finds other programs, makes short directories, keeps logs, waits, stalls connections and uses up file
// descriptors.
package harness

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main builds meshctl, puts its path into program, runs the tests and checks that no
// goroutine is left. It returns the exit code of TestMain.
func Main(m *testing.M, program *string) int {
	dir, err := os.MkdirTemp("", "meshctl-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if *program, err = Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Build builds meshctl in the directory and returns its path.
func Build(dir string) (program string, err error) {
	program = filepath.Join(dir, "meshctl")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "github.com/meshctl/meshctl/cmd/meshctl")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build meshctl: %w\n%s", err, out)
	}
	return program, nil
}

// Cached returns the path of a file in .cache of the repository, which the make target makes.
func Cached(file, target string) (string, error) {
	dir, err := filepath.Abs(".")
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
			continue
		}
		path := filepath.Join(dir, ".cache", file)
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("no %s: run make %s", path, target)
		}
		return path, nil
	}
	return "", errors.New("not inside the repository")
}

// Tail returns the end of a log for a failed test: at most its last 16 KiB.
func Tail(log string) []byte {
	data, err := os.ReadFile(log)
	if err != nil {
		return []byte(err.Error())
	}
	return data[max(0, len(data)-16<<10):]
}

// ShortDir is like tb.TempDir, with a path so short that Unix sockets fit below it.
func ShortDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "t") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// LogBuffer is a log that may be read while it is written.
type LogBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *LogBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns the log so far.
func (l *LogBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// FreeAddrs returns addresses of 127.0.0.1 that no socket listens on.
func FreeAddrs(tb testing.TB, n int) []string {
	tb.Helper()
	addrs, err := FindAddrs(n)
	if err != nil {
		tb.Fatal(err)
	}
	return addrs
}

// FindAddrs is FreeAddrs for a program that is no test.
func FindAddrs(n int) ([]string, error) {
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		out = append(out, l.Addr().String())
	}
	return out, nil
}

// Eventually waits until condition returns nil, and returns how long that took. The test
// fails after the deadline.
func Eventually(tb testing.TB, deadline time.Duration, what string, condition func() error) time.Duration {
	tb.Helper()
	began := time.Now()
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return time.Since(began)
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			tb.Fatalf("%s: not after %s: %v", what, deadline, err)
		}
	}
}
