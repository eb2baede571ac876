package publish

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
)

// What proxies mount to know the roots of the mesh.
const (
	RootConfigMap = "istio-ca-root-cert"
	RootKey       = "root-cert.pem"

	configLabel = "istio.io/config"
	// annotation names the clusters whose control planes may write to a cluster
	// that has none of its own.
	annotation = "topology.istio.io/controlPlaneClusters"
)

// Results of RootsConfig.Written.
const (
	Created = "created"
	Updated = "updated"
	Deleted = "deleted" // an immutable one, to be made anew
	Failed  = "error"
)

// RootsConfig of Roots. Written may be nil.
type RootsConfig struct {
	Cluster         mesh.ClusterID // the control plane's own
	SystemNamespace string         // in every cluster
	// Written counts each write.
	Written func(cluster mesh.ClusterID, result string)
	Now     func() time.Time
	Log     *slog.Logger
}

// Roots keep the ConfigMap with the roots of the mesh right in the namespaces
// of the own cluster, and of others whose system namespace says so. They may be
// used concurrently.
type Roots struct {
	cfg RootsConfig

	mu       sync.Mutex // guards what follows
	pem      string
	clusters map[mesh.ClusterID]*rest.Config
	keepers  map[mesh.ClusterID]*keeper // while this replica writes
	changed  chan struct{}              // has one when something above changed
}

// NewRoots returns roots of no cluster.
func NewRoots(cfg RootsConfig) *Roots {
	return &Roots{cfg: cfg, clusters: make(map[mesh.ClusterID]*rest.Config), changed: make(chan struct{}, 1)}
}

// SetRoots gives the roots in PEM, which every namespace gets from now on.
// Before nothing is written.
func (r *Roots) SetRoots(pem []byte) {
	r.change(func() { r.pem = string(pem) })
}

// SetCluster gives the access to a cluster, or another one for it.
func (r *Roots) SetCluster(id mesh.ClusterID, access *rest.Config) {
	r.change(func() { r.clusters[id] = access })
}

// RemoveCluster leaves a cluster alone, with what was written there.
func (r *Roots) RemoveCluster(id mesh.ClusterID) {
	r.change(func() { delete(r.clusters, id) })
}

func (r *Roots) change(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends: it is a Task.
func (r *Roots) Run(ctx context.Context) error {
	var ended sync.WaitGroup
	running := make(map[mesh.ClusterID]running)
	defer func() {
		for _, k := range running {
			k.stop()
		}
		ended.Wait()
		r.setKeepers(nil)
	}()
	for {
		r.mu.Lock()
		pem, clusters := r.pem, maps.Clone(r.clusters)
		r.mu.Unlock()
		r.update(ctx, &ended, running, pem, clusters)
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		}
	}
}

// running is a keeper that works.
type running struct {
	*keeper
	access *rest.Config
	stop   context.CancelFunc
}

// update starts and stops keepers so that they are those of the clusters, and
// gives them the roots.
func (r *Roots) update(
	ctx context.Context, ended *sync.WaitGroup, keepers map[mesh.ClusterID]running, pem string, clusters map[mesh.ClusterID]*rest.Config,
) {
	for id, k := range keepers {
		if clusters[id] != k.access {
			k.stop()
			delete(keepers, id)
		}
	}
	for id, access := range clusters {
		if _, known := keepers[id]; known {
			continue
		}
		k, err := newKeeper(&r.cfg, id, access)
		if err != nil {
			r.cfg.Log.Error("the roots of the mesh cannot be written to a cluster", "cluster", id, "error", err)
			continue
		}
		life, stop := context.WithCancel(ctx)
		keepers[id] = running{k, access, stop}
		ended.Go(func() { k.run(life) })
	}
	if pem != "" {
		for _, k := range keepers {
			k.setRoots(pem)
		}
	}
	shown := make(map[mesh.ClusterID]*keeper, len(keepers))
	for id, k := range keepers {
		shown[id] = k.keeper
	}
	r.setKeepers(shown)
}

func (r *Roots) setKeepers(m map[mesh.ClusterID]*keeper) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keepers = m
}

// RootsStatus says how it stands with a cluster while this replica writes.
type RootsStatus struct {
	Cluster mesh.ClusterID
	// Written is whether the cluster is one to write to.
	Written bool
	Problem string     `json:",omitempty"`
	Since   *time.Time `json:",omitempty"` // of the problem
}

// Status is that of all clusters, by name; nothing when another replica writes.
func (r *Roots) Status() []RootsStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []RootsStatus{}
	for _, k := range r.keepers {
		out = append(out, k.status())
	}
	slices.SortFunc(out, func(a, b RootsStatus) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return out
}

// ignored are the namespaces without workloads of a mesh, as with Istio.
func ignored(namespace string) bool {
	switch namespace {
	case "kube-public", "kube-node-lease", "local-path-storage":
		return true
	}
	return false
}

// invites reports whether the annotation of a remote system namespace lets the
// control plane of cluster own write.
func invites(value string, own mesh.ClusterID) bool {
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name == "*" || name == string(own) && name != "" {
			return true
		}
	}
	return false
}
