package publish

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Name and key of the ConfigMap with the roots of the mesh, which proxies mount.
const (
	RootConfigMap = "istio-ca-root-cert"
	RootKey       = "root-cert.pem"

	configLabel = "istio.io/config"

	// rootManager owns the fields of ConfigMaps that are made.
	rootManager = "meshctl-roots"
)

// Results of RootsConfig.Written.
const (
	Created = "created"
	Updated = "updated"
	Deleted = "deleted" // it was immutable, and is created again
	Failed  = "error"
)

// RootsConfig configures Roots. Written may be nil.
type RootsConfig struct {
	Cluster         mesh.ClusterID // of the control plane
	SystemNamespace string         // in every cluster
	// Written counts each write.
	Written func(cluster mesh.ClusterID, result string)
	Now     func() time.Time
	Log     *slog.Logger
}

// Roots maintain the ConfigMap with the roots of the mesh in every namespace of the own
// cluster, and of remote clusters whose system namespace allows it. They may be used
// concurrently.
type Roots struct {
	cfg RootsConfig

	mu       sync.Mutex // guards what follows
	pem      string
	clusters map[mesh.ClusterID]*kube.Client
	running  map[mesh.ClusterID]*clusterRoots // empty while another replica writes
	changed  chan struct{}                    // has one when something above changed
}

// NewRoots returns Roots without clusters.
func NewRoots(cfg RootsConfig) *Roots {
	return &Roots{
		cfg: cfg, clusters: make(map[mesh.ClusterID]*kube.Client), running: make(map[mesh.ClusterID]*clusterRoots),
		changed: make(chan struct{}, 1),
	}
}

// SetRoots sets the roots (PEM) for every namespace. Before the first call nothing is
// written.
func (r *Roots) SetRoots(pem []byte) {
	r.change(func() { r.pem = string(pem) })
}

// SetCluster adds a cluster or changes the access to it.
func (r *Roots) SetCluster(id mesh.ClusterID, access *rest.Config) error {
	access = rest.CopyConfig(access)
	access.QPS, access.Burst, access.RateLimiter = writesPerSecond, writeBurst, nil
	client, err := kube.NewClient(access)
	if err == nil {
		r.change(func() { r.clusters[id] = client })
	}
	return err
}

// RemoveCluster stops writing to a cluster. Its ConfigMaps stay.
func (r *Roots) RemoveCluster(id mesh.ClusterID) {
	r.change(func() { delete(r.clusters, id) })
}

func (r *Roots) change(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	signal(r.changed)
}

// Run writes until ctx ends. It is a Task.
func (r *Roots) Run(ctx context.Context) error {
	var ended sync.WaitGroup
	defer r.change(func() { clear(r.running) })
	defer ended.Wait()
	for {
		r.update(ctx, &ended)
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		}
	}
}

// update starts and stops the clusterRoots of added and removed clusters, and sets
// their roots.
func (r *Roots) update(ctx context.Context, ended *sync.WaitGroup) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, k := range r.running {
		if r.clusters[id] != k.client {
			k.stop()
			delete(r.running, id)
		}
	}
	for id, client := range r.clusters {
		k := r.running[id]
		if k == nil {
			k = newClusterRoots(&r.cfg, id, client)
			var life context.Context
			life, k.stop = context.WithCancel(ctx)
			r.running[id] = k
			ended.Go(func() { k.run(life) })
		}
		if r.pem != "" {
			k.setRoots(r.pem)
		}
	}
}

// RootsStatus reports the state of a cluster while this replica writes.
type RootsStatus struct {
	Cluster mesh.ClusterID
	// Written reports whether this replica writes to the cluster.
	Written bool
	Problem string     `json:",omitempty"`
	Since   *time.Time `json:",omitempty"` // of the problem
}

// Status returns the status of all clusters, by name; none if another replica writes.
func (r *Roots) Status() []RootsStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []RootsStatus{}
	for _, k := range r.running {
		out = append(out, k.status())
	}
	slices.SortFunc(out, func(a, b RootsStatus) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return out
}

// ignored reports whether a namespace has no workloads of a mesh, as Istio assumes.
func ignored(namespace string) bool {
	switch namespace {
	case "kube-public", "kube-node-lease", "local-path-storage":
		return true
	}
	return false
}

// invites reports whether the annotation of a remote system namespace allows the
// control plane of cluster own to write.
func invites(value string, own mesh.ClusterID) bool {
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name == "*" || name == string(own) && name != "" {
			return true
		}
	}
	return false
}
