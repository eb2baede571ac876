package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/token"
)

// ReviewersConfig of Reviewers. Audiences, Now and Log are required.
type ReviewersConfig struct {
	// Audiences that a token must name one of.
	Audiences []string
	// Reviewed is told how each TokenReview went: "accepted", "refused", or
	// "error" when the API server did not decide. May be nil.
	Reviewed func(cluster mesh.ClusterID, result string)
	Now      func() time.Time
	Log      *slog.Logger
}

// Reviewers check the service-account tokens of Kubernetes clusters, each at
// its own API server. A token first has to pass the keys, issuer, audience and
// times that the cluster publishes, so that a bad one costs the API server
// nothing; then a TokenReview decides, for only the API server knows whether
// the pod and the account that a token is bound to are still there.
//
// Reviewers may be used concurrently.
type Reviewers struct {
	cfg ReviewersConfig
	// ctx is their life: they are made before what uses them runs.
	ctx context.Context

	mu       sync.Mutex // guards what follows
	clusters map[mesh.ClusterID]*reviewer
	ended    sync.WaitGroup
}

// NewReviewers returns reviewers of no cluster, which end with ctx.
func NewReviewers(ctx context.Context, cfg ReviewersConfig) *Reviewers {
	return &Reviewers{cfg: cfg, ctx: ctx, clusters: make(map[mesh.ClusterID]*reviewer)}
}

// SetCluster reviews the tokens of a cluster with the given access from now
// on. A cluster that is known keeps its keys until those of the new access are
// read. The error says what is wrong with access; then nothing changes.
func (r *Reviewers) SetCluster(id mesh.ClusterID, access *rest.Config) error {
	n, err := newReviewer(r.ctx, &r.cfg, id, access)
	if err != nil {
		return fmt.Errorf("token reviews of cluster %s: %w", id, err)
	}
	r.mu.Lock()
	if err := r.ctx.Err(); err != nil {
		r.mu.Unlock()
		return err
	}
	old := r.clusters[id]
	if old != nil {
		n.keys.current = old.keys.get()
	}
	r.clusters[id] = n
	r.ended.Go(n.run)
	r.mu.Unlock()
	if old != nil {
		old.stop()
	}
	return nil
}

// RemoveCluster trusts no token of a cluster any longer.
func (r *Reviewers) RemoveCluster(id mesh.ClusterID) {
	r.mu.Lock()
	old := r.clusters[id]
	delete(r.clusters, id)
	r.mu.Unlock()
	if old != nil {
		old.stop()
	}
}

// Wait waits until nothing of the clusters is left, which is soon after the
// context has ended.
func (r *Reviewers) Wait() {
	<-r.ctx.Done()
	r.mu.Lock() // no cluster is being added
	defer r.mu.Unlock()
	r.ended.Wait()
}

func (r *Reviewers) ids() []mesh.ClusterID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.clusters))
}

func (r *Reviewers) get(id mesh.ClusterID) *reviewer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clusters[id]
}

// ReviewerStatus says whether the tokens of a cluster can be checked.
type ReviewerStatus struct {
	Cluster mesh.ClusterID
	// Issuer is the iss claim of its tokens, empty while it is not known.
	Issuer string `json:",omitempty"`
	// Problem is why not, what that costs, and how to repair it; empty if all
	// is well.
	Problem string     `json:",omitempty"`
	Since   *time.Time `json:",omitempty"` // of the problem
}

// Status is that of all clusters, by name.
func (r *Reviewers) Status() []ReviewerStatus {
	out := []ReviewerStatus{}
	for _, id := range slices.Sorted(slices.Values(r.ids())) {
		if c := r.get(id); c != nil {
			out = append(out, c.status())
		}
	}
	return out
}

// check returns the clusters of the list whose published keys accept the
// token, which is to be reviewed there then. Clusters that may have new keys are asked for them, all at once.
func (r *Reviewers) check(ctx context.Context, raw string, clusters []mesh.ClusterID) ([]verifiedToken, error) {
	now := r.cfg.Now()
	var good []verifiedToken
	var errs []error
	var stale []*reviewer
	try := func(c *reviewer, again bool) {
		claims, err := c.keys.verify(raw, now)
		switch {
		case err == nil:
			good = append(good, verifiedToken{c.cluster, claims, c.review})
		case !again && newKeysMayHelp(err):
			stale = append(stale, c)
		default:
			errs = append(errs, fmt.Errorf("cluster %q: %w", c.cluster, err))
		}
	}
	for _, id := range clusters {
		if c := r.get(id); c != nil {
			try(c, false)
		}
	}
	if len(good) > 0 || len(stale) == 0 {
		return good, errors.Join(errs...)
	}
	var asked sync.WaitGroup
	for _, c := range stale {
		asked.Go(func() { c.refetch(ctx) })
	}
	asked.Wait()
	for _, c := range stale {
		try(c, true)
	}
	return good, errors.Join(errs...)
}

// newKeysMayHelp reports whether a token may be good by keys that are not read
// yet.
func newKeysMayHelp(err error) bool {
	return errors.Is(err, errNoKeys) || errors.Is(err, token.ErrUnknownKey) || errors.Is(err, token.ErrOtherIssuer)
}
