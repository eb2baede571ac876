package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/test/harness"
)

// TestKilledUnderLoad: clients send requests all the time while Envoy or the agent is killed. Only
// the requests that are under way then fail, then connections are refused until the next agent is
// ready, and no request fails afterwards. No process and no listener is left in between, and no file
// in the end.
func TestKilledUnderLoad(t *testing.T) {
	for _, victim := range []string{"Envoy", "agent"} {
		t.Run(victim, func(t *testing.T) { testKilledUnderLoad(t, victim) })
	}
}

func testKilledUnderLoad(t *testing.T, victim string) {
	t.Helper()
	app := application(t)
	ca := certstest.NewIstioCA(t)
	ca.Serve(t, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, newInbound(t, app.Listener.Addr()))
	})
	flags := flagsFor(t, ca, harness.ShortDir(t))
	p := run(t, flags, "")
	clients := startClients(t, 8)
	clients.await(t, time.Now())

	pid := p.cmd.Process.Pid
	if victim == "Envoy" {
		pid = p.envoy(t)
	}
	killed := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := p.ended(t); err == nil {
		t.Error("the agent ended well")
	}
	harness.Eventually(t, deadline, "the end of all processes and listeners", func() error { return left(flags.ConfigPath) })
	if victim == "Envoy" {
		wantEmpty(t, flags.ConfigPath)
	}

	p = run(t, flags, "")
	ready := time.Now()
	clients.await(t, ready)
	cut := 0
	for _, f := range clients.stop() {
		switch {
		case f.began.Before(killed) && f.ended.After(killed):
			cut++
		case f.began.Before(killed):
			t.Errorf("a request failed before %s was killed: %v", victim, f.err)
		case f.began.After(ready):
			t.Errorf("a request failed %v after the next agent was ready: %v", f.began.Sub(ready), f.err)
		}
	}
	t.Logf("%d requests under way failed, connections were refused for %v", cut, ready.Sub(killed))

	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.ended(t); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if err := left(flags.ConfigPath); err != nil {
		t.Error(err)
	}
	wantEmpty(t, flags.ConfigPath)
}

// left returns an error that names a process that uses the directory, or a listener of the proxy.
func left(configPath string) error {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err == nil && bytes.Contains(line, []byte(configPath)) {
			return fmt.Errorf("process %s is left: %q", strings.Split(path, "/")[2], line)
		}
	}
	for _, port := range []int{15000, 15020, 15021, 15090, inboundPort} {
		l, err := net.Listen("tcp", net.JoinHostPort(bind, strconv.Itoa(port)))
		if err != nil {
			return fmt.Errorf("a listener is left: %w", err)
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}

// clients send requests through Envoy until they are stopped.
type clients struct {
	cancel context.CancelFunc
	group  sync.WaitGroup
	each   []*client
}

type client struct {
	mu       sync.Mutex
	answered time.Time // when the last answered request began
	failures []failure
}

// failure is a request that failed.
type failure struct {
	began, ended time.Time
	err          error
}

func startClients(t *testing.T, n int) *clients {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	all := &clients{cancel: cancel}
	t.Cleanup(func() { all.stop() })
	for range n {
		c := &client{}
		all.each = append(all.each, c)
		all.group.Go(func() { c.run(ctx) })
	}
	return all
}

// await waits until each client has an answer to a request that it sent after a time.
func (c *clients) await(t *testing.T, after time.Time) {
	t.Helper()
	harness.Eventually(t, deadline, "answers to all clients", func() error {
		for i, one := range c.each {
			one.mu.Lock()
			answered := one.answered
			one.mu.Unlock()
			if !answered.After(after) {
				return fmt.Errorf("client %d has no answer", i)
			}
		}
		return nil
	})
}

// stop ends the clients and returns the requests that failed.
func (c *clients) stop() []failure {
	c.cancel()
	c.group.Wait()
	var out []failure
	for _, one := range c.each {
		out = append(out, one.failures...)
	}
	return out
}

func (c *client) run(ctx context.Context) {
	http := &http.Client{Transport: &http.Transport{}}
	defer http.CloseIdleConnections()
	for ctx.Err() == nil {
		began := time.Now()
		err := c.send(ctx, http)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if err == nil {
			c.answered = began
		} else {
			c.failures = append(c.failures, failure{began, time.Now(), err})
		}
		c.mu.Unlock()
		if err != nil {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// send sends one request.
func (c *client) send(ctx context.Context, from *http.Client) error {
	// A request that net/http may not repeat by itself.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+net.JoinHostPort(bind, strconv.Itoa(inboundPort))+"/slow", strings.NewReader("body"))
	if err != nil {
		return err
	}
	resp, err := from.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return errors.Join(errors.New(resp.Status), err)
	}
	return nil
}
