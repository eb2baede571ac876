// Package load reads the objects of a mesh once, from files, directories and Kubernetes
// APIs, with the sources and the registry of the control plane. Commands use it that
// check or show a mesh without serving it.
package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/dir"
	"github.com/meshctl/meshctl/internal/server/source/kube"
)

// Cluster names the sources of one cluster.
type Cluster struct {
	ID mesh.ClusterID
	// Config is the access to the Kubernetes API of the cluster, or nil.
	Config *rest.Config
	// Dirs and Files hold further objects. Those of files replace objects of the same names
	// in directories, and both replace objects of the API.
	Dirs  []string
	Files []File
	// SecretNamespaces are the namespaces whose Secrets are read from the API; "*" means
	// all.
	SecretNamespaces []string
}

// File is a file of YAML.
type File struct {
	Name string
	Text []byte
}

// Config configures Read.
type Config struct {
	// Clusters are the clusters of the mesh. Configuration counts in the first one.
	Clusters []Cluster
	// SystemNamespace is the namespace of the ConfigMap istio; default istio-system.
	SystemNamespace string
	// Network and TrustDomain are settings of the control plane of the first cluster, as in
	// server.Config.
	Network     mesh.NetworkID
	TrustDomain string
	// SocketDir is the folder below which objects of files may name Unix sockets; empty for none.
	SocketDir string
	// Resolve returns the addresses of the host names of gateways. Default: each has some
	// address.
	Resolve func(hosts []string) map[string][]netip.Addr
	// Log is the logger; default: nothing is logged.
	Log *slog.Logger
	// Now is the clock; required.
	Now func() time.Time
	// Analysis is set to read what only an analysis of the mesh needs: the injection of pods, and
	// the configuration of all clusters.
	Analysis bool
}

// Mesh holds the objects of a mesh, and the parts that cannot be used.
type Mesh struct {
	*registry.Contents
	// Files and APIs hold the faults of objects and files.
	Files []dir.Problem
	APIs  []kube.Problem
	// Unread names the resources of APIs that an analysis could not read, with the reasons.
	Unread []error
	// Whole lists the clusters that were read from APIs, so that nothing of them is missing.
	Whole map[mesh.ClusterID]bool

	cfg     Config
	readers []*reader
}

// Size returns the number of objects that were read and, with valid content, can be used, and of their
// namespaces.
func (m *Mesh) Size() (objects, namespaces int) {
	names := map[string]bool{}
	for _, r := range m.readers {
		objects += len(r.seen.objects)
		for key := range r.seen.objects {
			if key.Namespace != "" {
				names[key.Namespace] = true
			}
		}
	}
	return objects, len(names)
}

// Read reads the mesh. If ctx ends before, the error names the clusters that do not
// answer.
func Read(ctx context.Context, cfg Config) (*Mesh, error) {
	if err := source.CheckSocketDir(cfg.SocketDir); err != nil {
		return nil, fmt.Errorf("folder of Unix sockets: %w", err)
	}
	ids := make([]mesh.ClusterID, len(cfg.Clusters))
	for i, c := range cfg.Clusters {
		ids[i] = c.ID
	}
	if cfg.Resolve == nil {
		cfg.Resolve = resolvable
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	var reg *registry.Registry
	reg = registry.New(registry.Config{
		Local: ids[0], Clusters: ids, Network: map[mesh.ClusterID]mesh.NetworkID{ids[0]: cfg.Network},
		TrustDomain: cfg.TrustDomain, SystemNamespace: source.SystemNamespaceOf(cfg.SystemNamespace),
		Publish: func(*snapshot.Snapshot, *snapshot.Changes) {},
		Resolve: func(hosts []string) { reg.SetAddresses(cfg.Resolve(hosts)) },
		Log:     cfg.Log, Now: cfg.Now,
	})
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	running, inner := errgroup.WithContext(ctx)
	running.Go(func() error { return reg.Run(inner) })
	readers := make([]*reader, len(cfg.Clusters))
	for i := range cfg.Clusters {
		readers[i] = newReader(&cfg, &cfg.Clusters[i], i > 0, reg)
		readers[i].start(inner, running)
	}
	running.Go(func() error { return watch(inner, readers) })
	contents, err := reg.Contents(inner)
	for _, r := range readers {
		err = r.explain(err)
	}
	stop()
	if err := cmp.Or(running.Wait(), err); err != nil {
		return nil, err
	}
	out := &Mesh{Contents: contents, Whole: make(map[mesh.ClusterID]bool), cfg: cfg, readers: readers}
	for _, r := range readers {
		out.add(r)
	}
	return out, nil
}

// watch returns an error if an API server refuses to be read, nil when ctx ends. It waits for
// an answer about each resource, so that the error lists the same resources each time.
func watch(ctx context.Context, readers []*reader) error {
	ticks := time.NewTicker(watchInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		for _, r := range readers {
			if !r.answered() {
				continue
			}
			if err := r.failure(func(s *kube.ResourceStatus) bool { return s.Cause == kube.CauseForbidden && !s.Optional }); err != nil {
				return err
			}
		}
	}
}

// watchInterval is the interval between looks at the state of API servers.
const watchInterval = 200 * time.Millisecond

// resolvable returns an address for each host name of a gateway: whether a name can be
// resolved is no property of the configuration.
func resolvable(hosts []string) map[string][]netip.Addr {
	out := make(map[string][]netip.Addr, len(hosts))
	for i, host := range hosts {
		out[host] = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
	}
	return out
}

// reader reads one cluster. It is the sink of its directories.
type reader struct {
	*registry.Registry
	cluster *Cluster
	seen    *seen
	api     *kube.Source
	dirs    []*dir.Source
	events  []snapshot.Event // of files
	faults  []dir.Problem    // of files
	left    atomic.Int64     // directories that have not been read
}

func newReader(cfg *Config, c *Cluster, remote bool, reg *registry.Registry) *reader {
	r := &reader{Registry: reg, cluster: c, seen: newSeen()}
	if c.Config != nil {
		r.api = &kube.Source{
			Cluster: c.ID, Config: c.Config, SystemNamespace: cfg.SystemNamespace, Configuration: !remote,
			SecretNamespaces: c.SecretNamespaces, Log: cfg.Log, Now: cfg.Now, Analysis: cfg.Analysis,
		}
	}
	conv := source.Converter{Cluster: c.ID, SystemNamespace: cfg.SystemNamespace, Remote: remote, SocketDir: cfg.SocketDir, Analysis: cfg.Analysis}
	for _, f := range c.Files {
		events, faults := dir.Parse(&conv, f.Name, f.Text)
		r.events, r.faults = append(r.events, events...), append(r.faults, faults...)
		for _, p := range faults {
			p.Log(cfg.Log.With("cluster", c.ID))
		}
	}
	for _, path := range c.Dirs {
		r.dirs = append(r.dirs, &dir.Source{Cluster: c.ID, Dir: path, SystemNamespace: cfg.SystemNamespace, Remote: remote, SocketDir: cfg.SocketDir, Log: cfg.Log, Now: cfg.Now, Analysis: cfg.Analysis})
	}
	r.left.Store(int64(len(r.dirs)))
	return r
}

// start reads the API, then the directories and then the files: later objects replace
// earlier ones.
func (r *reader) start(ctx context.Context, running *errgroup.Group) {
	if r.api == nil {
		r.readDirs(ctx, running)
		return
	}
	running.Go(func() error {
		return r.api.Run(ctx, apiSink{r, func() { r.readDirs(ctx, running) }})
	})
}

func (r *reader) readDirs(ctx context.Context, running *errgroup.Group) {
	for _, d := range r.dirs {
		running.Go(func() error { return d.Run(ctx, r) })
	}
	if len(r.dirs) == 0 {
		r.readFiles()
	}
}

// Synced implements snapshot.Sink, for a directory.
func (r *reader) Synced(mesh.ClusterID) {
	if r.left.Add(-1) == 0 {
		r.readFiles()
	}
}

func (r *reader) readFiles() {
	r.Apply(r.events)
	r.Registry.Synced(r.cluster.ID)
}

// apiSink is the sink of a Kubernetes API. It calls synced when everything was read.
type apiSink struct {
	*reader
	synced func()
}

// Synced implements snapshot.Sink.
func (s apiSink) Synced(mesh.ClusterID) { s.synced() }

// Apply implements snapshot.Sink. Control planes do not read the configuration in other clusters.
func (s apiSink) Apply(events []snapshot.Event) {
	if s.api.Configuration {
		s.reader.Apply(events)
		return
	}
	s.seen.add(events)
	s.Registry.Apply(slices.DeleteFunc(slices.Clone(events), func(e snapshot.Event) bool { return isConfiguration(e.Key.Kind) }))
}

// Apply implements snapshot.Sink.
func (r *reader) Apply(events []snapshot.Event) {
	r.seen.add(events)
	r.Registry.Apply(events)
}

// answered reports whether the API was read, or refused to be read, for each resource.
func (r *reader) answered() bool {
	if r.api == nil {
		return true
	}
	st := r.api.Status()
	return !slices.ContainsFunc(st.Resources, func(s kube.ResourceStatus) bool { return !s.Synced && !s.Optional && !isAnswer(&s) })
}

// isAnswer reports whether a request for a resource failed in a way that another one will not mend.
func isAnswer(s *kube.ResourceStatus) bool {
	return s.Error != "" && s.Cause != kube.CauseTCP && s.Cause != kube.CauseTimeout && s.Cause != kube.CauseServer
}

// explain returns the error of the API in place of the end of the wait for it.
func (r *reader) explain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return cmp.Or(r.failure(func(s *kube.ResourceStatus) bool { return s.Error != "" }), err)
	}
	return err
}

// failure returns an error with the first selected resources that are not read, nil if
// there are none.
func (r *reader) failure(selects func(*kube.ResourceStatus) bool) error {
	if r.api == nil {
		return nil
	}
	const most = 3
	var texts []string
	more := 0
	st := r.api.Status()
	for i := range st.Resources {
		switch s := &st.Resources[i]; {
		case st.Synced || !selects(s) || slices.Contains(texts, s.Error):
		case len(texts) == most:
			more++
		default:
			texts = append(texts, s.Error)
		}
	}
	if more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more resources", more))
	}
	if len(texts) == 0 {
		return nil
	}
	return fmt.Errorf("cluster %s: %s", r.cluster.ID, strings.Join(texts, "; "))
}

// add adds the problems of a cluster. Objects in files replace objects of the API.
func (m *Mesh) add(r *reader) {
	m.Files = append(m.Files, r.faults...)
	for _, d := range r.dirs {
		m.Files = append(m.Files, d.Status()...)
	}
	if r.api == nil {
		return
	}
	status := r.api.Status()
	m.Whole[r.cluster.ID] = true
	for i := range status.Resources {
		if s := &status.Resources[i]; !s.Synced && s.Error != "" {
			m.Unread = append(m.Unread, fmt.Errorf("cluster %s: %s", r.cluster.ID, s.Error))
		}
	}
	for _, p := range status.Problems {
		replaced := slices.ContainsFunc(m.Objects[p.Key.Kind], func(o snapshot.Object) bool {
			return o.Key() == p.Key && o.ReadFrom() != (snapshot.Place{})
		})
		if !replaced {
			m.APIs = append(m.APIs, p)
		}
	}
}
