package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// server is the meshctl process under load.
type server struct {
	cmd     *exec.Cmd
	log     logBuffer
	xds     string
	metrics string
	ready   time.Duration // from start until /ready said yes
}

// logBuffer keeps what the server wrote, for when something fails.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func startServer(ctx context.Context, binary, dir, config string) (*server, error) {
	addrs, err := freeAddrs(4)
	if err != nil {
		return nil, err
	}
	s := &server{xds: addrs[0], metrics: "http://" + addrs[2] + "/metrics"}
	s.cmd = exec.CommandContext(ctx, binary, "serve", "--config-dir", config, "--state-dir", filepath.Join(dir, "state"),
		"--grpc-addr", addrs[0], "--http-addr", addrs[1], "--monitoring-addr", addrs[2], "--secure-grpc-addr", addrs[3])
	s.cmd.Stderr = &s.log
	start := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w (run 'make build' first)", err)
	}
	for {
		resp, err := http.Get("http://" + addrs[1] + "/ready")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				s.ready = time.Since(start)
				return s, nil
			}
		}
		if time.Since(start) > time.Minute {
			_ = s.stop()
			return nil, fmt.Errorf("the server is not ready after a minute:\n%s", s.log.String())
		}
		time.Sleep(time.Millisecond)
	}
}

// freeAddrs finds ports that nobody listens on.
func freeAddrs(n int) ([]string, error) {
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

func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.AfterFunc(20*time.Second, func() { _ = s.cmd.Process.Kill() })
	defer timer.Stop()
	return s.cmd.Wait()
}

// usage is what the server has used so far.
type usage struct {
	cpu             float64 // seconds
	rss             int64   // bytes
	generated, sent float64
}

func (s *server) usage() (usage, error) {
	resp, err := http.Get(s.metrics)
	if err != nil {
		return usage{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	var u usage
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return usage{}, fmt.Errorf("metrics: %q: %w", lines.Text(), err)
		}
		switch base, _, _ := strings.Cut(name, "{"); base {
		case "process_cpu_seconds_total":
			u.cpu = v
		case "process_resident_memory_bytes":
			u.rss = int64(v)
		case "meshctl_xds_generated_total":
			u.generated += v
		case "meshctl_xds_sent_total":
			u.sent += v
		}
	}
	return u, lines.Err()
}
