// Package clusters manages the clusters that a control plane reads. An origin, such as a
// remote secret, registers a cluster; of several registrations the first counts. Each
// cluster has one reader that fills the registry. When its credential changes, a second
// reader reads everything before it replaces the first, so that nothing is removed in
// between. Readers try again without end, and no cluster waits for another.
//
// The goroutine of Manager.Run owns the set of clusters. Sources, origins and timers only
// put keys into its queue.
package clusters

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// OriginKind is the kind of an Origin.
type OriginKind string

// The kinds of origins.
const (
	OriginOwn       OriginKind = "own"       // the configuration of the control plane itself
	OriginDirectory OriginKind = "directory" // a directory of YAML
	OriginSecret    OriginKind = "secret"    // a remote secret
	OriginFile      OriginKind = "file"      // a kubeconfig
)

// Origin registers clusters: a directory, a Secret as namespace/name, or a file.
type Origin struct {
	Kind OriginKind
	Name string
}

// Source reads one cluster, once.
type Source interface {
	// Run passes all objects to the sink, calls Synced and follows the cluster until
	// ctx ends; then it returns nil.
	Run(ctx context.Context, sink snapshot.Sink) error
	// Report returns the state of the source. It may be called concurrently.
	Report() Report
}

// Report is the state of the source of a cluster.
type Report struct {
	// LostSince is the time since which the cluster cannot be followed; zero if it
	// can.
	LostSince time.Time `json:",omitzero"`
	// Cause is the cause in one word, such as tcp, tls, 401, 403, expired; Reason
	// explains it. For a cluster that is followed, they give the worst other problem.
	Cause  string `json:",omitempty"`
	Reason string `json:",omitempty"`
	// Faults are all reasons, the worst first, which is that of Cause and Reason.
	Faults []Fault `json:",omitempty"`
	// Heard is the time of the last response; zero if unknown.
	Heard time.Time `json:",omitzero"`
	// Problems are other problems, such as missing permissions.
	Problems []string `json:",omitempty"`
	// Unenforced are security policies that are not, or not fully, enforced; only the
	// first if there are many.
	Unenforced []string `json:",omitempty"`
	// NotUsed is the number of other problems with objects.
	NotUsed int `json:",omitempty"`
	// Version of the API server.
	Version string `json:",omitempty"`
}

// Access reads a cluster.
type Access struct {
	// Config of its Kubernetes API, nil for a directory.
	Config *rest.Config
	// NewSource makes a source for each attempt to read the cluster.
	NewSource func() Source
	// Close, if not nil, closes the remaining connections.
	Close func()
	// Notes are for people, such as the permissions that were granted to a kubeconfig.
	Notes []string
}

// Spec is a cluster as an origin registers it.
type Spec struct {
	ID mesh.ClusterID
	// Hash is the hash of everything that decides how the cluster is reached.
	Hash string
	// Err reports that the spec is not valid; the earlier spec of the origin stays.
	Err error
	// Open checks the spec and returns the access. It does not connect.
	Open func(allow []string) (*Access, error)
	// Credential identifies the credential without disclosing it.
	Credential string
	// TokenEnds is the time at which the credential expires; zero if never or
	// unknown.
	TokenEnds time.Time
	// TokenBegins is the time at which it was issued; zero if unknown.
	TokenBegins time.Time
	// Namespaces and CredentialNamespaces are those of remotesecret.Cluster.
	Namespaces, CredentialNamespaces []string
}

// Finder finds origins and follows them.
type Finder interface {
	// Run calls Set for each existing origin, then Listed, and follows changes until
	// ctx ends; then it returns nil.
	Run(ctx context.Context, registrar Registrar) error
}

// Registrar receives the origins of a Finder. Its methods do not block.
type Registrar interface {
	// Set sets the clusters of an origin, sorted by id.
	Set(o Origin, specs []Spec)
	// Listed reports that Set was called for all existing origins.
	Listed()
}

// Handler uses the Kubernetes APIs of clusters. One goroutine makes the calls for one
// handler. A slow handler delays no others, and gets only the latest access.
type Handler interface {
	// SetCluster is called with the access to a new cluster, and with each new access.
	SetCluster(mesh.ClusterID, *rest.Config)
	// RemoveCluster is called for a cluster that was removed or no longer has an API.
	RemoveCluster(mesh.ClusterID)
}

// Registry receives the objects of all clusters, and shows what it made of them.
type Registry interface {
	snapshot.Sink
	Expect(mesh.ClusterID)
	Replace(mesh.ClusterID, []snapshot.Event)
	Remove(mesh.ClusterID)
	SetBalancing(mesh.ClusterID, snapshot.Balancing)

	Current() *snapshot.Snapshot
	UnreachableNetworks() []facts.UnreachableNetwork
	AddressConflicts() []facts.AddressConflict
	HostConflicts() []facts.HostConflict
	RefusedGateways() map[mesh.ClusterID]facts.RefusedGateways
}

// Config configures a Manager.
type Config struct {
	// Own is the cluster of the control plane, OwnOrigin its origin.
	Own       mesh.ClusterID
	OwnOrigin Origin
	OwnAccess Access
	// Static are other permanent clusters.
	Static []StaticCluster
	// Finders find more clusters after the own cluster was read.
	Finders  []Finder
	Registry Registry
	Handlers []Handler
	// RemoteTimeout is the longest wait of the first snapshot for a cluster.
	RemoteTimeout time.Duration
	// OnLost is the default treatment of the endpoints of a lost cluster. Grace is the
	// time after the loss until they are dropped.
	OnLost mesh.OnLost
	Grace  time.Duration
	Log    *slog.Logger
	Now    func() time.Time
	// Jitter returns a random number from 0 to 1, which spreads attempts.
	Jitter  func() float64
	Metrics prometheus.Registerer

	timing timing // tests shorten it
}

// StaticCluster is a cluster of the command line.
type StaticCluster struct {
	Origin Origin
	Spec   Spec
}

// timing has the intervals that are not configurable.
type timing struct {
	gap     time.Duration // between two changes of one origin
	retry   time.Duration // after the first failed attempt; doubles each time
	longest time.Duration // between two attempts
	tick    time.Duration // between two checks for lost clusters
	lost    time.Duration // of a failure, after which a cluster counts as lost
	remind  time.Duration // between two log lines about policies that are not enforced
}

func defaultTiming() timing {
	return timing{gap: 200 * time.Millisecond, retry: 500 * time.Millisecond, longest: 4 * time.Second, tick: time.Second, lost: 10 * time.Second, remind: 10 * time.Minute}
}
