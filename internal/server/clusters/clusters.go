// Package clusters owns which clusters a control plane reads and how each of
// them lives. A cluster is claimed by an origin, such as a remote secret; of
// several claims the first counts. Each cluster has one reading that fills the
// registry; when its credential changes, a second one reads everything before
// it takes the place of the first, so that nothing is ever taken away in
// between. What cannot be read is tried again for ever and holds nobody up.
//
// One goroutine, that of Run, owns which clusters there are. Sources, origins
// and timers only put keys into its queue.
package clusters

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// OriginKind says what claims a cluster.
type OriginKind string

// The kinds of origins.
const (
	OriginOwn       OriginKind = "own"       // the configuration of the control plane itself
	OriginDirectory OriginKind = "directory" // a directory of YAML
	OriginSecret    OriginKind = "secret"    // a remote secret
	OriginFile      OriginKind = "file"      // a kubeconfig
)

// Origin is what claims clusters: a directory, a Secret as namespace/name, or
// a file.
type Origin struct {
	Kind OriginKind
	Name string
}

// Source reads one cluster. It is run once.
type Source interface {
	// Run hands all objects over, says Synced and follows the cluster until
	// ctx ends, when it returns nil.
	Run(ctx context.Context, sink snapshot.Sink) error
	// Report is how the reading goes; it is called from other goroutines.
	Report() Report
}

// Report is how the reading of a cluster goes.
type Report struct {
	// LostSince is since when nothing more is heard of the cluster; zero when
	// it is followed.
	LostSince time.Time `json:",omitzero"`
	// Cause is why in one word, such as tcp, tls, 401, 403, expired; Reason in
	// words. Of a cluster that is followed they say what else is most wrong.
	Cause  string `json:",omitempty"`
	Reason string `json:",omitempty"`
	// Heard is when the cluster was last heard of; zero when that is not known.
	Heard time.Time `json:",omitzero"`
	// Problems are what else is wrong, such as what may not be read.
	Problems []string `json:",omitempty"`
	// Unenforced are security policies that are not enforced, or not all of them;
	// some of them when there are many.
	Unenforced []string `json:",omitempty"`
	// NotUsed is how many other problems there are with objects.
	NotUsed int `json:",omitempty"`
	// Version is that of the API server.
	Version string `json:",omitempty"`
}

// Access is how a cluster is reached.
type Access struct {
	// Config is that of its Kubernetes API, nil for a directory.
	Config *rest.Config
	// NewSource makes what reads the cluster, for each attempt a new one.
	NewSource func() Source
	// Close, when not nil, ends what is left of its connections.
	Close func()
	// Notes are what a person should know, such as what was allowed.
	Notes []string
}

// Spec is a cluster that an origin claims.
type Spec struct {
	ID mesh.ClusterID
	// Hash is of what decides how the cluster is reached: with an equal one
	// nothing has changed.
	Hash string
	// Err says that it cannot be used; what the origin claimed before stays.
	Err error
	// Open checks it and makes the access. It does not connect.
	Open func(allow []string) (*Access, error)
	// Credential identifies the credential without telling it.
	Credential string
	// TokenEnds is when the credential ends; zero when it does not or when that
	// is not known.
	TokenEnds time.Time
	// TokenBegins is when it was made; zero when that is not known.
	TokenBegins time.Time
}

// Finder finds origins and follows them.
type Finder interface {
	// Run reports what there is with Claims.Set, each origin after the other,
	// says Claims.Listed and follows changes until ctx ends, when it returns
	// nil.
	Run(ctx context.Context, claims Registrar) error
}

// Claims takes what a Finder finds. Its methods do not block.
type Registrar interface {
	// Set says which clusters the origin claims now, sorted by id.
	Set(o Origin, specs []Spec)
	// Listed says that everything that was there was handed over.
	Listed()
}

// Cluster is what handlers are told of.
type Cluster struct {
	ID  mesh.ClusterID
	Own bool
	// Config is that of its Kubernetes API, nil for a directory.
	Config *rest.Config
}

// Handler is told how clusters live: each cluster is first added, then updated
// any number of times when its access changes, then deleted. The calls for one
// handler come from one goroutine; a slow one holds nobody else up, and it is
// told of the newest access only.
type Handler interface {
	ClusterAdded(Cluster)
	ClusterUpdated(Cluster)
	ClusterDeleted(id mesh.ClusterID)
}

// Registry is what readings fill.
type Registry interface {
	snapshot.Sink
	Expect(mesh.ClusterID)
	Replace(mesh.ClusterID, []snapshot.Event)
	Remove(mesh.ClusterID)
	SetBalancing(mesh.ClusterID, snapshot.Balancing)
}

// Config says what a Manager works on.
type Config struct {
	// Own is the cluster of the control plane, OwnOrigin where it is read.
	Own       mesh.ClusterID
	OwnOrigin Origin
	OwnAccess Access
	// Static are other clusters that are always there.
	Static []StaticCluster
	// Finders find more once the own cluster was read.
	Finders  []Finder
	Registry Registry
	Handlers []Handler
	// RemoteTimeout is how long the first snapshot waits for a cluster.
	RemoteTimeout time.Duration
	// OnLost is what happens to the endpoints of a lost cluster for which the
	// settings say nothing else, Grace how long after the loss they are
	// dropped.
	OnLost mesh.OnLost
	Grace  time.Duration
	// IgnorePolicies has the own cluster be served though it has security
	// policies that are not enforced.
	IgnorePolicies bool
	Log            *slog.Logger
	Now            func() time.Time
	// Jitter spreads attempts: a random number from 0 to 1.
	Jitter  func() float64
	Metrics prometheus.Registerer

	timing timing // tests shorten it
}

// StaticCluster is a cluster of the command line.
type StaticCluster struct {
	Origin Origin
	Spec   Spec
}

// timing holds the waits that are no settings.
type timing struct {
	gap     time.Duration // between two looks at one origin
	retry   time.Duration // after the first failed reading, twice as long after each
	longest time.Duration // between two readings
	tick    time.Duration // between two looks at what was lost
	lost    time.Duration // without news before a cluster counts as lost
	remind  time.Duration // between two log lines about policies that are not enforced
}

func defaultTiming() timing {
	return timing{gap: 200 * time.Millisecond, retry: 500 * time.Millisecond, longest: 4 * time.Second, tick: time.Second, lost: 10 * time.Second, remind: 10 * time.Minute}
}
