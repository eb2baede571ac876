package server

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/dir"
	"github.com/meshctl/meshctl/internal/server/source/kube"
)

// remoteRetry is how long a remote cluster that cannot be read is left alone.
const remoteRetry = time.Second

// clusterStatus is how far one cluster was read, as the status page shows it.
type clusterStatus struct {
	Cluster mesh.ClusterID
	Dir     string       `json:",omitempty"`
	API     *kube.Status `json:",omitempty"` // when it is read from a Kubernetes API
	Synced  bool         // everything was read once
	Error   string       `json:",omitempty"` // why it cannot be read
}

// clusters reads the clusters. The own one must be readable; a remote one that
// is not is tried again and again, and holds nothing up for long.
type clusters struct {
	sink  snapshot.Sink
	cfg   *Config
	gauge *prometheus.GaugeVec

	api *kube.Source // of the own cluster when it is read from its API

	mu     sync.Mutex
	status map[mesh.ClusterID]*clusterStatus
}

func newClusters(cfg *Config, sink snapshot.Sink, reg prometheus.Registerer) *clusters {
	c := &clusters{
		sink: sink, cfg: cfg, status: make(map[mesh.ClusterID]*clusterStatus),
		gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "meshctl_cluster_synced", Help: "Whether everything of a cluster was read once.",
		}, []string{"cluster"}),
	}
	reg.MustRegister(c.gauge)
	if cfg.KubeAccess != nil {
		c.api = &kube.Source{
			Cluster: cfg.ClusterID, Config: cfg.KubeAccess, Configuration: true, SystemNamespace: cfg.systemNamespace(),
			SecretNamespaces: cfg.SecretNamespaces, Log: cfg.Log, Now: cfg.Now,
		}
	}
	for _, d := range cfg.dirs() {
		c.status[d.Cluster] = &clusterStatus{Cluster: d.Cluster, Dir: d.Dir}
		c.gauge.WithLabelValues(string(d.Cluster)).Set(0)
	}
	return c
}

// run reads one cluster until ctx ends.
func (c *clusters) run(ctx context.Context, d ClusterDir) error {
	read := func() error {
		src := &dir.Source{Cluster: d.Cluster, Dir: d.Dir, SystemNamespace: c.cfg.systemNamespace(), Log: c.cfg.Log, Now: c.cfg.Now}
		return src.Run(ctx, c)
	}
	if d.Cluster == c.cfg.ClusterID {
		if c.api != nil {
			return c.api.Run(ctx, c)
		}
		return read()
	}
	late := time.AfterFunc(cmp.Or(c.cfg.RemoteTimeout, defaultRemoteTimeout), func() { c.giveUp(d) })
	defer late.Stop()
	retry := time.NewTicker(remoteRetry)
	defer retry.Stop()
	for {
		err := read()
		if err == nil || ctx.Err() != nil {
			return nil
		}
		c.fail(d, err)
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// fail notes why a cluster cannot be read, and logs each reason once.
func (c *clusters) fail(d ClusterDir, err error) {
	c.mu.Lock()
	st := c.status[d.Cluster]
	known := st.Error == err.Error()
	st.Error = err.Error()
	c.mu.Unlock()
	if !known {
		c.cfg.Log.Error("a remote cluster cannot be read, trying again", "cluster", d.Cluster, "error", err)
	}
}

// giveUp lets the mesh be served without a cluster that was not read so far.
func (c *clusters) giveUp(d ClusterDir) {
	c.mu.Lock()
	synced := c.status[d.Cluster].Synced
	c.mu.Unlock()
	if !synced {
		c.cfg.Log.Error("serving without a remote cluster until it can be read", "cluster", d.Cluster, "dir", d.Dir)
		c.sink.Synced(d.Cluster)
	}
}

// Apply implements snapshot.Sink.
func (c *clusters) Apply(events []snapshot.Event) { c.sink.Apply(events) }

// Synced implements snapshot.Sink.
func (c *clusters) Synced(id mesh.ClusterID) {
	c.sink.Synced(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.status[id]
	st.Synced, st.Error = true, ""
	c.gauge.WithLabelValues(string(id)).Set(1)
}

// list is the status of all clusters, by name.
func (c *clusters) list() []clusterStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]clusterStatus, 0, len(c.status))
	for _, st := range c.status {
		shown := *st
		if st.Cluster == c.cfg.ClusterID && c.api != nil {
			api := c.api.Status()
			shown.API = &api
		}
		out = append(out, shown)
	}
	slices.SortFunc(out, func(a, b clusterStatus) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return out
}

// faults are why the API of the own cluster is not followed.
func (c *clusters) faults() []string {
	if c.api == nil {
		return nil
	}
	st := c.api.Status()
	return st.Errors()
}
