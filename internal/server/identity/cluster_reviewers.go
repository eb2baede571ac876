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

// ReviewersConfig configures Reviewers. Audiences, Now and Log are required.
type ReviewersConfig struct {
	// Audiences are the accepted audiences; a token must name one of them.
	Audiences []string
	// Reviewed gets the result of each TokenReview: "accepted", "refused", or
	// "error" if the API server did not decide. May be nil.
	Reviewed func(cluster mesh.ClusterID, result string)
	Now      func() time.Time
	Log      *slog.Logger

	reviewTimeout time.Duration // bounds a review; tests raise it
}

// Reviewers check the service-account tokens of Kubernetes clusters with their API
// servers. A token first has to match the published keys and issuer of the cluster,
// an audience and the time, so that a forged token costs the API server nothing.
// Then a TokenReview decides, as only the API server knows whether the pod and the
// account of the token still exist.
//
// Reviewers may be used concurrently.
type Reviewers struct {
	cfg ReviewersConfig
	// ctx ends all reviewers. It is stored as clusters come and go at any time.
	ctx context.Context

	mu       sync.Mutex // guards what follows
	clusters map[mesh.ClusterID]*reviewer
	ended    sync.WaitGroup
}

// NewReviewers returns Reviewers without clusters, which end with ctx.
func NewReviewers(ctx context.Context, cfg ReviewersConfig) *Reviewers {
	cfg.reviewTimeout = askTimeout
	return &Reviewers{cfg: cfg, ctx: ctx, clusters: make(map[mesh.ClusterID]*reviewer)}
}

// SetCluster reviews the tokens of a cluster with the given access from now on. A
// known cluster keeps its keys until the new ones are fetched. If access is not
// usable, SetCluster changes nothing and returns an error.
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

// RemoveCluster stops trusting the tokens of a cluster.
func (r *Reviewers) RemoveCluster(id mesh.ClusterID) {
	r.mu.Lock()
	old := r.clusters[id]
	delete(r.clusters, id)
	r.mu.Unlock()
	if old != nil {
		old.stop()
	}
}

// Wait waits until the context has ended and all reviewers have stopped.
func (r *Reviewers) Wait() {
	<-r.ctx.Done()
	r.mu.Lock() // excludes a concurrent SetCluster
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

// ReviewerStatus reports whether the tokens of a cluster can be checked.
type ReviewerStatus struct {
	Cluster mesh.ClusterID
	// Issuer is the iss claim of its tokens, empty while unknown.
	Issuer string `json:",omitempty"`
	// Problem gives the reason why not, the consequence and the fix. It is empty if
	// tokens can be checked.
	Problem string     `json:",omitempty"`
	Since   *time.Time `json:",omitempty"` // of the problem
}

// Status returns the status of all clusters, by name.
func (r *Reviewers) Status() []ReviewerStatus {
	out := []ReviewerStatus{}
	for _, id := range slices.Sorted(slices.Values(r.ids())) {
		if c := r.get(id); c != nil {
			out = append(out, c.status())
		}
	}
	return out
}

// check returns the listed clusters whose published keys accept the token; their
// API servers still have to review it. If none does, check fetches new keys from all
// clusters that may have them, in parallel.
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

// newKeysMayHelp reports whether a token may be valid with keys that are not fetched
// yet.
func newKeysMayHelp(err error) bool {
	return errors.Is(err, errNoKeys) || errors.Is(err, token.ErrUnknownKey) || errors.Is(err, token.ErrOtherIssuer)
}
