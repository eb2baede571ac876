// Package agent is the companion of one Envoy: it writes Envoy's bootstrap,
// gets and renews the workload's certificate, hands it to Envoy by SDS, tells
// others whether the proxy is ready, and starts and ends Envoy.
package agent

import (
	"context"
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
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/process"
)

// Bounds of waiting for Envoy, beside the drain that the person chooses.
const (
	adminTimeout = 3 * time.Second
	stopTimeout  = 5 * time.Second // from SIGTERM to SIGKILL
)

// Options are what an agent has of the world outside.
type Options struct {
	Log            *slog.Logger
	Stdout, Stderr io.Writer // Envoy's
	Environ        []string  // Envoy's
	Now            func() time.Time
	Rand           *rand.Rand
}

// Run runs Envoy with all it needs until ctx ends, drains it and cleans up.
// It returns nil then, and when Envoy ends with status 0 by itself; any other
// end of Envoy is an error with its cause.
func Run(ctx context.Context, cfg Config, opts Options) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the agent runs on Linux only, not on %s", runtime.GOOS)
	}
	if !cfg.NoEnvoy {
		envoyPath, err := exec.LookPath(cfg.EnvoyPath)
		if err != nil {
			return fmt.Errorf("find envoy: %w; name it with --envoy, or run without with --no-envoy", err)
		}
		cfg.EnvoyPath = envoyPath
	}
	if err := cfg.checkDirectories(); err != nil {
		return err
	}
	if _, err := os.Stat(cfg.CARootFile); err != nil {
		return fmt.Errorf("roots to check the certificate authority with: %w; name the file with --root-ca", err)
	}
	apps, err := cfg.applicationFiles()
	if err != nil {
		return err
	}
	secrets := sds.New(opts.Log)
	manager, publisher := newManager(cfg, opts, secrets, apps)
	var admin *adminClient
	if !cfg.NoEnvoy {
		admin = newAdmin(cfg)
		defer admin.close()
	}
	status := newStatus(admin, manager.Status, publisher.lists.Status, opts)

	// What serves Envoy goes on while Envoy drains, and ends after it.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	tasks, serving := errgroup.WithContext(serving)
	statusListener, err := net.Listen("tcp", netip.AddrPortFrom(cfg.Listen, cfg.StatusPort).String())
	if err != nil {
		return fmt.Errorf("serve the agent's status: %w; choose another port with --status-port", err)
	}
	tasks.Go(func() error { return status.serve(serving, statusListener) })

	health, stopProbing := cfg.startProbing(ctx, opts.Log, status)
	up := cfg.upstream(opts, manager, publisher, health)
	sockets, err := cfg.sockets(opts.Log, secrets, manager)
	if err == nil {
		for _, s := range sockets {
			tasks.Go(func() error { return s.serve(serving, s.listener) })
		}
		tasks.Go(func() error { manager.Run(serving); return nil })
		tasks.Go(func() error { return publisher.lists.Run(serving) })
		if up != nil {
			tasks.Go(func() error { return up.Run(serving) })
		}
		if cfg.NoEnvoy {
			err = runAlone(ctx, serving, cfg, opts, status)
		} else {
			err = runEnvoy(ctx, serving, cfg, opts, admin, status)
		}
	}
	stopProbing() // whose last word is told before serving ends
	stop()
	if taskErr := tasks.Wait(); err == nil || errors.Is(err, errServing) {
		err = taskErr
	}
	if len(sockets) > 0 && !cfg.NoEnvoy {
		err = errors.Join(err, removeDir(filepath.Dir(cfg.sdsSocket())))
	}
	return err
}

// runAlone waits until ctx ends, or serving does.
func runAlone(ctx, serving context.Context, cfg Config, opts Options, status *statusServer) error {
	opts.Log.Info("serving applications without Envoy", "node", cfg.Node.String(), "bootstrap", cfg.GRPCBootstrap)
	select {
	case <-serving.Done():
		return errServing
	case <-ctx.Done():
	}
	status.terminate()
	return nil
}

// errServing says that the agent ends because one of its tasks failed.
var errServing = errors.New("a server of the agent failed")

// runEnvoy writes the bootstrap and runs Envoy until ctx ends, serving ends,
// or Envoy does.
func runEnvoy(ctx, serving context.Context, cfg Config, opts Options, admin *adminClient, status *statusServer) (err error) {
	file, err := writeBootstrap(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(file)) }()
	envoy, err := process.Start(context.WithoutCancel(ctx), process.Command{
		Name: "envoy", Path: cfg.EnvoyPath, Args: envoyArgs(cfg, file), Env: opts.Environ,
		Stdout: opts.Stdout, Stderr: opts.Stderr,
	})
	if err != nil {
		return err
	}
	opts.Log.Info("started envoy", "pid", envoy.PID(), "node", cfg.Node.String(), "bootstrap", file)
	select {
	case <-envoy.Done():
		if err := envoy.Err(); err != nil {
			return err
		}
		opts.Log.Info("envoy ended by itself")
		return nil
	case <-serving.Done():
		return errors.Join(errServing, stopEnvoy(ctx, envoy))
	case <-ctx.Done():
	}
	status.terminate()
	opts.Log.Info("draining envoy", "for", cfg.TerminationDrain.String())
	if err := admin.drain(context.WithoutCancel(ctx)); err != nil {
		opts.Log.Warn("envoy does not drain; connections will be cut", "error", err)
	} else {
		timer := time.NewTimer(cfg.TerminationDrain)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-envoy.Done():
		}
	}
	if err := stopEnvoy(ctx, envoy); err != nil {
		return err
	}
	opts.Log.Info("envoy has ended")
	return nil
}

// stopEnvoy ends Envoy, also when ctx has ended.
func stopEnvoy(ctx context.Context, envoy *process.Process) error {
	_, err := envoy.Stop(context.WithoutCancel(ctx), stopTimeout)
	return err
}

// sdsSocket is the path of the socket that Envoy gets its secrets from. Its
// directory holds nothing else, so that it can be closed to others.
func (c *Config) sdsSocket() string { return filepath.Join(c.ConfigPath, "sds", "socket") }

// Bootstrap renders the bootstrap that Run starts Envoy with, as JSON.
func (c *Config) Bootstrap() ([]byte, error) {
	return bootstrap.Marshal(bootstrap.Config{
		Node: c.Node, NodeCluster: c.NodeCluster, Metadata: c.Metadata,
		Listen: c.Listen, DualStack: c.DualStack, Local: c.Local,
		AdminPort: c.AdminPort, StatusPort: c.StatusPort, ReadyPort: c.ReadyPort, StatsPort: c.StatsPort,
		SDSSocket: c.sdsSocket(),
		XDSHost:   c.Discovery.Host, XDSPort: c.Discovery.Port, XDSServerName: c.Discovery.Name,
		XDSRootFile: c.XDSRootFile, KeyExchanges: c.KeyExchanges, Delta: c.Delta,
		Stats: c.Stats, RuntimeValues: c.RuntimeValues,
	})
}

// checkDirectories makes the directory of the bootstrap and refuses directories
// in which others could put files in the place of the agent's. In a pod anybody
// may write to a volume, which its containers alone have.
func (c *Config) checkDirectories() error {
	if err := os.MkdirAll(c.ConfigPath, 0o700); err != nil {
		return fmt.Errorf("make directory for the bootstrap: %w", err)
	}
	if c.InPod {
		return nil
	}
	dirs := [][2]string{{c.ConfigPath, "--config-path"}, {c.CertDir, "--output-certs"}}
	if c.GRPCBootstrap != "" {
		dirs = append(dirs, [2]string{filepath.Dir(c.GRPCBootstrap), "--grpc-bootstrap"})
	}
	for _, dir := range dirs {
		if err := files.CheckDirectory(dir[0]); dir[0] != "" && err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("refuse the directory %s (%s): %w", dir[0], dir[1], err)
		}
	}
	return nil
}

func writeBootstrap(cfg Config) (path string, err error) {
	data, err := cfg.Bootstrap()
	if err != nil {
		return "", err
	}
	path = filepath.Join(cfg.ConfigPath, "envoy-rev.json")
	return path, files.Write(path, data, files.Secret)
}

// envoyArgs are the arguments that Istio's agent starts Envoy with.
func envoyArgs(cfg Config, bootstrapFile string) []string {
	family := "v4"
	if cfg.Local.Is6() {
		family = "v6"
	}
	level, components := splitLogLevel(cfg.LogLevel)
	args := []string{
		"-c", bootstrapFile,
		"--drain-time-s", strconv.Itoa(int((cfg.Drain + time.Second - 1) / time.Second)),
		"--drain-strategy", "immediate",
		"--local-address-ip-version", family,
		"--file-flush-interval-msec", "1000",
		"--disable-hot-restart",
		"--allow-unknown-static-fields",
		"-l", level,
	}
	if components != "" {
		args = append(args, "--component-log-level", components)
	}
	args = append(args, "--skip-deprecated-logs")
	if cfg.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(cfg.Concurrency))
	}
	return args
}

// splitLogLevel takes info,misc:error apart: the level of all, then those of
// components.
func splitLogLevel(s string) (level, components string) {
	level = defaultLogLevel
	var rest []string
	for part := range strings.SplitSeq(s, ",") {
		if strings.Contains(part, ":") {
			rest = append(rest, part)
		} else if part != "" {
			level = part
		}
	}
	return level, strings.Join(rest, ",")
}

// removeDir removes an empty directory, if it is there.
func removeDir(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}

// adminClient talks to Envoy's admin port.
type adminClient struct {
	http *http.Client
	base string
	// scope of a drain: a sidecar's outbound connections end with the
	// application, so only the inbound ones are drained.
	drainPath string
}

func newAdmin(cfg Config) *adminClient {
	a := &adminClient{
		http:      dial.HTTPClient(adminTimeout, nil),
		base:      "http://" + netip.AddrPortFrom(cfg.Local, cfg.AdminPort).String(),
		drainPath: "/drain_listeners?graceful",
	}
	if cfg.Node.Type == mesh.Sidecar {
		a.drainPath = "/drain_listeners?inboundonly&graceful"
	}
	return a
}

func (a *adminClient) close() { a.http.CloseIdleConnections() }

func (a *adminClient) drain(ctx context.Context) error {
	_, err := a.do(ctx, http.MethodPost, a.drainPath)
	return err
}

// maxAdminBody bounds what is read of an answer: a few statistics.
const maxAdminBody = 64 << 10

func (a *adminClient) do(ctx context.Context, method, path string) (body string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("ask envoy: %w", err)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask envoy: %w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAdminBody))
	if err != nil {
		return "", fmt.Errorf("read envoy's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("ask envoy: %s %s: status %s", method, path, resp.Status)
	}
	return string(data), nil
}
