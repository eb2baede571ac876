// Package agent runs next to one Envoy, or next to an application that speaks xDS itself:
// it writes the bootstrap, obtains and renews the workload's certificate, serves it to
// Envoy by SDS, serves readiness and metrics, and starts and ends Envoy.
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
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/probe"
	"github.com/meshctl/meshctl/internal/agent/sds"
)

// Options of Run. All fields but Profiling and Release are needed.
type Options struct {
	Log            *slog.Logger
	Stdout, Stderr io.Writer // of Envoy
	Environ        []string  // of Envoy
	Now            func() time.Time
	Rand           *rand.Rand
	// Profiling serves runtime profiles at the status port to processes of the pod or machine.
	Profiling bool
	// Release returns memory that is not in use to the system. It is called again and again.
	Release func()
}

// Run runs Envoy with everything it needs until ctx ends, drains it and cleans up. It
// returns nil then, and when Envoy ends by itself with status 0. Any other end of Envoy is
// an error with its cause.
func Run(ctx context.Context, cfg config.Config, opts Options) error { //nolint:funlen // it starts the parts of the agent, in this order
	if runtime.GOOS != "linux" {
		return fmt.Errorf("the agent runs on Linux only, not on %s", runtime.GOOS)
	}
	if err := checkFiles(&cfg); err != nil {
		return err
	}
	apps, err := newApplicationFiles(&cfg)
	if err != nil {
		return err
	}
	proof, err := proveSockets(&cfg)
	if err != nil {
		return err
	}
	secrets := sds.New(opts.Log)
	manager, publisher := newPublisher(&cfg, opts, secrets, apps)
	var admin *adminClient
	if !cfg.NoEnvoy {
		if admin, err = newAdmin(&cfg); err != nil {
			return err
		}
		defer admin.close()
	}
	names := newNames(&cfg, opts)
	status := newStatus(&cfg, admin, names, secrets, manager.Status, publisher.lists.Status, opts)
	status.metrics.Peers = newPeers(&cfg, manager, opts)

	// The servers of Envoy go on while Envoy drains, and end after it.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	tasks, serving := errgroup.WithContext(serving)
	statusListener, adminListener, err := listenPorts(&cfg)
	if err != nil {
		return err
	}
	tasks.Go(func() error { return status.serve(serving, statusListener) })
	tasks.Go(func() error { return status.metrics.Peers.Run(serving) })
	if admin != nil {
		tasks.Go(func() error { return admin.serve(serving, adminListener, status.guard, opts.Log) })
	}

	health, stopProbing := startProbing(ctx, cfg.Probe, opts.Log, status.check)
	patches := newBootstrapPatches(&cfg, opts)
	streams, stream := newStreams(&cfg, opts, status, manager, handlers(&cfg, opts.Log, publisher, names, patches), health)
	sockets, err := openSockets(ctx, &cfg, opts, secrets, streams, names, status.guard, proof)
	if err == nil {
		status.countSockets(sockets)
		if streams.Modules != nil {
			status.registry.MustRegister(streams.Modules.Collectors()...)
		}
		for _, s := range sockets {
			tasks.Go(func() error { return s.serve(serving, s.listener) })
			if s.kept != nil {
				tasks.Go(func() error { return s.kept.Keep(serving) })
			}
		}
		if cfg.WorkloadSocket == "" || !cfg.Direct || stream != nil {
			tasks.Go(func() error { return runCertificate(serving, &cfg, opts, manager, publisher) })
		}
		if stream != nil {
			tasks.Go(func() error { return stream.Run(serving) })
		}
		if opts.Release != nil {
			tasks.Go(func() error { release(serving, opts.Release); return nil })
		}
		if cfg.NoEnvoy {
			err = runAlone(ctx, serving, &cfg, opts, status)
		} else {
			err = startEnvoy(ctx, serving, &cfg, opts, status, patches, streams.Call)
		}
	}
	stopProbing() // its last report is sent before serving ends
	stop()
	if taskErr := tasks.Wait(); err == nil || errors.Is(err, errServing) {
		err = taskErr
	}
	if len(sockets) > 0 && !cfg.NoEnvoy {
		if rmErr := os.Remove(filepath.Dir(cfg.SDSSocket)); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("clean up: %w", rmErr))
		}
	}
	return err
}

// listenPorts listens on the status port and, with an Envoy, on the admin port.
func listenPorts(cfg *config.Config) (status, admin net.Listener, err error) {
	if status, err = net.Listen("tcp", netip.AddrPortFrom(cfg.StatusAddress, cfg.StatusPort).String()); err != nil {
		return nil, nil, fmt.Errorf("serve the agent's status: %w; choose another port with --status-port", err)
	}
	if cfg.NoEnvoy {
		return status, nil, nil
	}
	if admin, err = net.Listen("tcp", netip.AddrPortFrom(cfg.Local, cfg.AdminPort).String()); err != nil {
		err = fmt.Errorf("serve Envoy's admin interface: %w; choose another port with --admin-port", err)
		return nil, nil, errors.Join(err, status.Close())
	}
	return status, admin, nil
}

// checkFiles finds the program of Envoy, and checks the directories and the file of roots.
func checkFiles(cfg *config.Config) error {
	if !cfg.NoEnvoy {
		envoyPath, err := exec.LookPath(cfg.EnvoyPath)
		if err != nil {
			return fmt.Errorf("find envoy: %w; name it with --envoy, or run without with --no-envoy", err)
		}
		cfg.EnvoyPath = envoyPath
	}
	if err := checkDirectories(cfg); err != nil {
		return err
	}
	if _, err := os.Stat(cfg.CARootFile); err != nil && cfg.CARootFile != "" {
		return fmt.Errorf("roots to check the certificate authority with: %w; name the file with --root-ca", err)
	}
	return nil
}

// Memory is released when the start is over, which needs most of it, and regularly from then on: a
// new stream to the control plane, for example, may transfer the whole configuration.
const (
	firstRelease  = 10 * time.Second
	releasePeriod = time.Minute
)

// release calls do until ctx ends.
func release(ctx context.Context, do func()) {
	for wait := firstRelease; ; wait = releasePeriod {
		select {
		case <-time.After(wait):
			do()
		case <-ctx.Done():
			return
		}
	}
}

// runAlone waits until ctx or serving ends.
func runAlone(ctx, serving context.Context, cfg *config.Config, opts Options, status *statusServer) error {
	opts.Log.Info("serving applications without Envoy", "node", cfg.Node.String(), "bootstrap", cfg.GRPCBootstrap)
	select {
	case <-serving.Done():
		return errServing
	case <-status.control.quit:
	case <-ctx.Done():
	}
	status.terminate()
	return nil
}

// errServing reports that the agent ends because one of its tasks failed.
var errServing = errors.New("a server of the agent failed")

// startProbing probes the application until ctx ends or stop is called; stop waits for the
// last report. health holds the newest unread report. It is nil when p is nil.
func startProbing(ctx context.Context, p *probe.Config, log *slog.Logger, ready func(context.Context) error) (health <-chan string, stop func()) {
	if p == nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	newest, ended := make(chan string, 1), make(chan struct{})
	report := func(problem string) {
		switch problem {
		case "":
			log.Info("the application is healthy")
		case probe.Stopping:
			log.Info("the application is no longer probed")
		default:
			log.Warn("the application is not healthy", "problem", problem)
		}
		select {
		case <-newest: // an unread report is old now
		default:
		}
		newest <- problem
	}
	go func() {
		defer close(ended)
		p.Run(ctx, ready, report)
	}()
	return newest, func() { cancel(); <-ended }
}
