// Package demo runs a mesh of two clusters on two networks on one Linux machine: two control
// planes, two east-west gateways, two versions of one service and two clients. Every proxy is
// a real Envoy with its agent. A network is a range of loopback addresses and a pod is one of
// its addresses, so nothing needs root and nothing is redirected.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Bounds of waits.
const (
	startTimeout   = time.Minute // for one step of the start
	pollInterval   = 50 * time.Millisecond
	adminTimeout   = 10 * time.Second
	requestTimeout = 10 * time.Second
)

// Options of Start.
type Options struct {
	// Program is the path of meshctl, which runs as control planes and agents.
	Program string
	// Envoy is the path of Envoy. If it is empty, the demo looks in the working directory's
	// .cache, then on PATH.
	Envoy string
	// Dir is the directory of all files, which stay there. It must not exist or must be
	// empty. If Dir is "", the demo uses a temporary directory, which Stop removes.
	Dir string
	// Logs is the directory of logs when Dir is "". It is emptied at the start, and removed
	// at the end unless the mesh failed.
	Logs string
	// SotW selects state-of-the-world xDS instead of incremental xDS.
	SotW bool
	// CertTTL is the lifetime of the proxies' certificates; 0 means the default of agents.
	CertTTL time.Duration
	// Rand and Now are used for certificates and tokens, LookupEnv for the environment of
	// children.
	Rand      io.Reader
	Now       func() time.Time
	LookupEnv func(string) (string, bool)
	// Done, if not nil, is called after each step of the start. Note, if not nil, is called
	// with slow steps and other remarks.
	Done func(step string)
	Note func(text string)
	// Hurry, once closed, makes Stop kill all remaining processes.
	Hurry <-chan struct{}
}

// Mesh is a running mesh.
type Mesh struct {
	opts     Options
	dir      string
	logs     string
	lock     *os.File // of a temporary dir
	clusters []*cluster
	clients  []*Client
	http     *http.Client

	apps     []*app
	controls []*child
	agents   []*child

	stopping atomic.Bool
	failed   context.Context // ends when a process ended too early
	fail     context.CancelCauseFunc
}

// Start starts the mesh and returns when each client has had an answer of both versions. The
// caller must Stop the mesh. After an error, only the logs that the error names are left.
func Start(ctx context.Context, opts Options) (_ *Mesh, err error) {
	if err := supported(); err != nil {
		return nil, err
	}
	m := &Mesh{
		opts:     opts,
		clusters: newClusters(),
		http:     dial.HTTPClient(adminTimeout, nil),
	}
	m.failed, m.fail = context.WithCancelCause(context.WithoutCancel(ctx))
	version, err := m.prepare(ctx)
	if err != nil {
		return nil, err
	}
	m.done("Envoy %s, all addresses free", version)
	if err := m.makeDirs(); err != nil {
		return nil, err
	}

	bound, cancel := m.bind(ctx)
	defer cancel()
	if err := m.up(bound); err != nil {
		// The reason why a wait ended early is the better cause.
		if cause := context.Cause(bound); cause != nil {
			err = cause
		}
		if ctx.Err() == nil {
			m.fail(err)
		}
		return nil, errors.Join(err, m.Stop(ctx))
	}
	return m, nil
}

// prepare finds Envoy and returns its version, removes directories of killed demos, and
// checks that all addresses are free.
func (m *Mesh) prepare(ctx context.Context) (version string, err error) {
	stop := m.watch(func() string { return "waiting for envoy --version" })
	m.opts.Envoy, version, err = findEnvoy(ctx, m.opts.Envoy)
	stop()
	if err != nil {
		return "", err
	}
	removed, err := removeStale(os.TempDir())
	for _, dir := range removed {
		m.done("removed %s, which a killed demo had left", dir)
	}
	if err != nil {
		m.note(err.Error()) // the demo can go on
	}
	var endpoints []endpoint
	for _, c := range m.clusters {
		endpoints = append(endpoints, c.endpoints()...)
	}
	return version, checkPorts(ctx, endpoints)
}

// anotherPlace is the advice when logs cannot be written.
const anotherPlace = "name another place with XDG_STATE_HOME, or give --keep DIR"

// makeDirs makes the directories of the run and of its logs. After an error no temporary
// directory is left.
func (m *Mesh) makeDirs() (err error) {
	if m.opts.Dir != "" {
		dir, err := filepath.Abs(m.opts.Dir)
		if err != nil {
			return err
		}
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			return fmt.Errorf("%s is not empty; name a directory that is, or one that does not exist", dir)
		}
		m.dir, m.logs = dir, filepath.Join(dir, "logs")
	} else {
		if m.logs, err = filepath.Abs(m.opts.Logs); err != nil {
			return err
		}
		if err := os.RemoveAll(m.logs); err != nil {
			return fmt.Errorf("remove the logs of an earlier demo: %w; %s", err, anotherPlace)
		}
		if m.dir, m.lock, err = newRunDir(os.TempDir()); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return errors.Join(fmt.Errorf("make the demo's directory: %w", err), m.removeRunDir())
	}
	if err := os.MkdirAll(m.logs, 0o700); err != nil {
		return errors.Join(fmt.Errorf("make the directory of the logs: %w; %s", err, anotherPlace), m.removeRunDir())
	}
	return nil
}

// removeRunDir removes the directory of the run if it is temporary.
func (m *Mesh) removeRunDir() error {
	if m.lock == nil {
		return nil
	}
	defer m.lock.Close()
	return os.RemoveAll(m.dir)
}

// up starts all parts, step by step.
func (m *Mesh) up(ctx context.Context) error {
	if err := m.writeTrust(); err != nil {
		return err
	}
	m.done("certificates and tokens")
	if err := m.writeConfig(); err != nil {
		return err
	}
	m.done("configuration of both clusters in %s", m.dir)
	if err := m.startControls(ctx); err != nil {
		return err
	}
	m.done("control planes are ready")
	if err := m.startAgents(ctx); err != nil {
		return err
	}
	m.done("%d Envoys are ready", len(m.agents))
	if err := m.warmUp(ctx); err != nil {
		return err
	}
	m.done("both clients reach both versions")
	return nil
}

func (m *Mesh) done(format string, args ...any) {
	if m.opts.Done != nil {
		m.opts.Done(fmt.Sprintf(format, args...))
	}
}

func (m *Mesh) note(text string) {
	if m.opts.Note != nil {
		m.opts.Note(text)
	}
}

// writeConfig starts the applications and writes the YAML of both clusters.
func (m *Mesh) writeConfig() error {
	for _, c := range m.clusters {
		a, err := startApp(c)
		if err != nil {
			return err
		}
		m.apps = append(m.apps, a)
		config, err := c.configFiles(a.addr)
		if err != nil {
			return err
		}
		if err := files.WriteAll(m.Dir(c.id), config); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mesh) startControls(ctx context.Context) error {
	for _, c := range m.clusters {
		p, err := startChild(ctx, m.opts.Program, m.controlCommand(c), m.ended)
		if err != nil {
			return err
		}
		m.controls = append(m.controls, p)
	}
	var pages []page
	for _, c := range m.clusters {
		pages = append(pages, page{c.httpAddr(), "/ready"})
	}
	return m.awaitAll(ctx, "control planes", m.controls, pages)
}

func (m *Mesh) startAgents(ctx context.Context) error {
	var pages []page
	for _, c := range m.clusters {
		for _, p := range c.pods() {
			command, err := m.agentCommand(c, p)
			if err != nil {
				return err
			}
			agent, err := startChild(ctx, m.opts.Program, command, m.ended)
			if err != nil {
				return err
			}
			m.agents = append(m.agents, agent)
			pages = append(pages, page{p.at(mesh.PortEnvoyReadiness), "/healthz/ready"})
		}
	}
	return m.awaitAll(ctx, "Envoys", m.agents, pages)
}

// page is a path of an HTTP server of the mesh.
type page struct {
	addr netip.AddrPort
	path string
}

// awaitAll waits until each process answers at its page.
func (m *Mesh) awaitAll(ctx context.Context, what string, all []*child, pages []page) error {
	var ready atomic.Int32
	defer m.watch(func() string {
		return fmt.Sprintf("waiting for %d %s (%d ready)", len(all), what, ready.Load())
	})()
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range all {
		group.Go(func() error {
			err := poll(ctx, func(ctx context.Context) error {
				_, err := m.get(ctx, pages[i].addr, pages[i].path)
				return err
			})
			if err != nil {
				return fmt.Errorf("the %s is not ready: %w (log: %s)", p.role, err, p.log)
			}
			ready.Add(1)
			return nil
		})
	}
	return group.Wait()
}

// poll calls probe until it succeeds, ctx ends, or startTimeout has passed. Then it returns
// the last error of probe.
func poll(ctx context.Context, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("waited %s", startTimeout))
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// warmUp waits until each client has had an answer of both versions.
func (m *Mesh) warmUp(ctx context.Context) error {
	for _, c := range m.clusters {
		m.clients = append(m.clients, &Client{
			Cluster: c.id,
			pod:     c.client,
			url:     fmt.Sprintf("http://%s.%s:%d/hello", helloworld, sampleNamespace, helloworldPort),
			http:    dial.ProxiedHTTPClient(requestTimeout, c.client.at(clientProxyPort).String(), concurrency),
		})
	}
	defer m.watch(func() string { return "waiting for answers of both versions to both clients" })()
	for _, c := range m.clients {
		seen := map[string]bool{}
		err := poll(ctx, func(ctx context.Context) error {
			for range 10 {
				a, err := c.Get(ctx)
				if err != nil {
					return err
				}
				seen[a.Version] = true
			}
			if len(seen) < len(m.clusters) {
				return fmt.Errorf("only %d of %d versions answer", len(seen), len(m.clusters))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("the client of %s does not reach both versions of helloworld: %w (logs: %s)", c.Cluster, err, m.logs)
		}
	}
	return nil
}

// Dir returns the directory that the control planes read as the cluster.
func (m *Mesh) Dir(cluster mesh.ClusterID) string { return filepath.Join(m.dir, string(cluster)) }

// EndpointFile returns the file with the endpoint of the cluster's helloworld.
func (m *Mesh) EndpointFile(cluster mesh.ClusterID) string {
	return filepath.Join(m.Dir(cluster), filepath.FromSlash(helloworldEndpoints))
}

// ControlPlaneLog returns the log file of the cluster's control plane.
func (m *Mesh) ControlPlaneLog(cluster mesh.ClusterID) string {
	return m.logPath(string(cluster) + "-" + controlPlane)
}

// Clients returns the client pods, of cluster1 first.
func (m *Mesh) Clients() []*Client { return m.clients }

// Proxy is one of the mesh's Envoys.
type Proxy struct {
	Name         string // cluster and workload
	Admin        string // address of the admin interface
	ControlPlane string // address of its control plane's plaintext xDS
}

// Proxies returns all Envoys of the mesh.
func (m *Mesh) Proxies() []Proxy {
	var out []Proxy
	for _, c := range m.clusters {
		for _, p := range c.pods() {
			out = append(out, Proxy{Name: p.slug(), Admin: p.admin().String(), ControlPlane: c.plainXDSAddr().String()})
		}
	}
	return out
}

// Failed returns a channel that is closed when a process of the mesh ended too early. Err
// then has the cause.
func (m *Mesh) Failed() <-chan struct{} { return m.failed.Done() }

// Err returns the cause of the first failure, nil while there is none.
func (m *Mesh) Err() error { return context.Cause(m.failed) }

// ended is called with each process that ended.
func (m *Mesh) ended(p *child) {
	if !m.stopping.Load() {
		m.fail(p.cause())
	}
}

// bind returns a context that also ends when the mesh fails, with the failure as its cause.
func (m *Mesh) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(m.failed, func() { cancel(m.Err()) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Stop ends the mesh and removes its files, except those that Options keep. It does so also
// when ctx has ended, and kills processes when Options.Hurry is closed.
func (m *Mesh) Stop(ctx context.Context) error {
	if m.stopping.Swap(true) {
		return nil
	}
	failed := m.Err() != nil
	ctx, cancel := m.unhurried(ctx)
	defer cancel()

	var errs []error
	if m.opts.Dir != "" {
		// A failed mesh may lack some dumps.
		if err := m.keepDumps(ctx); err != nil && !failed && ctx.Err() == nil {
			errs = append(errs, err)
		}
	}
	for _, c := range m.clients {
		c.http.CloseIdleConnections()
	}
	errs = append(errs, m.stopAll(ctx, m.agents), m.stopAll(ctx, m.controls))
	for _, a := range m.apps {
		errs = append(errs, a.close())
	}
	m.http.CloseIdleConnections()

	errs = append(errs, m.removeRunDir())
	if m.opts.Dir == "" && !failed && errors.Join(errs...) == nil {
		errs = append(errs, os.RemoveAll(m.logs))
	}
	return errors.Join(errs...)
}

// unhurried returns a context that ends when Options.Hurry is closed, not with ctx.
func (m *Mesh) unhurried(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		select {
		case <-m.opts.Hurry:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// stopAll stops the processes concurrently.
func (m *Mesh) stopAll(ctx context.Context, all []*child) error {
	var left atomic.Int32
	left.Store(int32(len(all)))
	defer m.watch(func() string {
		text := fmt.Sprintf("waiting for %d of %d processes to end", left.Load(), len(all))
		if m.opts.Hurry != nil {
			text += "; Ctrl-C kills them"
		}
		return text
	})()
	errs := make([]error, len(all))
	var group errgroup.Group
	for i, p := range all {
		group.Go(func() error {
			errs[i] = p.stop(ctx)
			left.Add(-1)
			return nil
		})
	}
	_ = group.Wait() // the functions return no error
	return errors.Join(errs...)
}

// keepDumps saves the bootstraps, configuration and certificates of the Envoys.
func (m *Mesh) keepDumps(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	var (
		errs []error
		kept []files.File
	)
	for _, c := range m.clusters {
		for _, p := range c.pods() {
			for _, source := range []struct {
				dir  string
				read func() ([]byte, error)
			}{
				{"bootstraps", func() ([]byte, error) { return os.ReadFile(filepath.Join(m.podDir(p), podBootstrap)) }},
				{"config_dumps", func() ([]byte, error) { return m.get(ctx, p.admin(), "/config_dump?include_eds") }},
				{"clusters", func() ([]byte, error) { return m.get(ctx, p.admin(), "/clusters?format=json") }},
				{"certificates", func() ([]byte, error) { return m.get(ctx, p.admin(), "/certs") }},
			} {
				data, err := source.read()
				if err != nil {
					errs = append(errs, fmt.Errorf("keep the %s of the %s: %w", source.dir, p.role, err))
					continue
				}
				kept = append(kept, files.File{Name: filepath.Join(source.dir, p.slug()+".json"), Data: data, Mode: files.Secret})
			}
		}
	}
	return errors.Join(errors.Join(errs...), files.WriteAll(m.dir, kept))
}
