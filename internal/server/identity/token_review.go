package identity

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/serving"
	"github.com/meshctl/meshctl/internal/token"
)

const (
	// askTimeout bounds each request to an API server, including its wait for a
	// free slot.
	askTimeout = 5 * time.Second
	// maxReviews bounds the concurrent reviews of one cluster, maxReviewsNamespace those of the
	// tokens of one namespace, and maxWaiting those that wait.
	maxReviews, maxReviewsNamespace, maxWaiting = 64, 16, 10_000
	// maxAnswer bounds a response, in bytes.
	maxAnswer = token.MaxKeySetSize + 1
	// probeInterval is the interval between checks that tokens can be reviewed.
	probeInterval = 5 * time.Minute
	minProbeRetry = time.Second
	maxProbeRetry = 15 * time.Second
)

// errUndecided marks the error for a token that may be valid: the API server could
// not be asked.
var errUndecided = errors.New("the token was not reviewed")

// reviewer reviews the tokens of one cluster.
type reviewer struct {
	cfg     *ReviewersConfig
	cluster mesh.ClusterID
	keys    issuerKeys
	api     *kube.Client
	slots   *serving.Slots // one for each review under way; namespaces take turns
	failed  chan struct{}  // capacity 1: a review failed, so run probes

	// ctx ends with the cluster, and ends its requests.
	ctx  context.Context
	stop context.CancelFunc

	flight singleflight.Group // reviews under way, by token

	mu      sync.Mutex // guards what follows
	problem *reviewProblem
}

// reviewProblem is the reason why tokens cannot be reviewed.
type reviewProblem struct {
	fix   string
	err   error
	since time.Time
}

func newReviewer(ctx context.Context, cfg *ReviewersConfig, id mesh.ClusterID, access *rest.Config) (*reviewer, error) {
	api, err := kube.NewBoundedClient(access, maxAnswer)
	if err != nil {
		return nil, err
	}
	r := &reviewer{
		cfg: cfg, cluster: id, api: api,
		failed: make(chan struct{}, 1),
		slots: serving.NewSlots(serving.SlotLimits{
			Running: maxReviews, OfSource: maxReviewsNamespace, OfPart: maxReviewsNamespace, Waiting: maxWaiting, WaitingOfPart: maxWaiting,
		}),
	}
	r.keys.fetch, r.keys.now = r.fetchKeys, cfg.Now
	r.ctx, r.stop = context.WithCancel(ctx)
	return r, nil
}

// run checks from time to time, and after each failure, that tokens can be
// reviewed, so that the status is right before a workload sends one.
func (r *reviewer) run() {
	defer r.api.Close()
	retry := minProbeRetry
	for {
		wait := probeInterval
		if err := r.probe(); err != nil {
			wait, retry = retry, min(2*retry, maxProbeRetry)
			r.note(err)
		} else {
			retry = minProbeRetry
			r.note(nil)
		}
		if !r.wait(wait) {
			return
		}
	}
}

// wait waits for d, or after a failed review for the first retry at most. It returns
// false if the cluster was removed.
func (r *reviewer) wait(d time.Duration) bool {
	soon, late := time.NewTimer(min(d, minProbeRetry)), time.NewTimer(d)
	defer soon.Stop()
	defer late.Stop()
	select {
	case <-r.ctx.Done():
		return false
	case <-soon.C:
	}
	select {
	case <-r.ctx.Done():
		return false
	case <-late.C:
	case <-r.failed:
	}
	return true
}

// probe fetches missing keys, and checks that the credential may create reviews.
func (r *reviewer) probe() error {
	if r.keys.get() == nil {
		if err := r.keys.refetch(r.ctx, r.ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, askTimeout)
	defer cancel()
	answer, err := r.api.ReviewOwnAccess(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews",
		}},
	})
	switch {
	case err != nil:
		return fmt.Errorf("check the permissions of the credential: %w", err)
	case !answer.Status.Allowed:
		return errMayNot
	}
	return nil
}

var errMayNot = errors.New("the credential may not create tokenreviews.authentication.k8s.io")

// note records why tokens cannot be reviewed, or with nil that they can. It logs
// each problem once.
func (r *reviewer) note(err error) {
	if err != nil && r.ctx.Err() != nil {
		return // the cluster was removed
	}
	r.mu.Lock()
	last := r.problem
	r.problem = nil
	if err != nil {
		r.problem = &reviewProblem{fix: fixOf(err), err: err, since: r.cfg.Now()}
		if last != nil {
			r.problem.since = last.since
		}
	}
	now := r.problem
	r.mu.Unlock()
	switch {
	case now != nil && (last == nil || last.fix != now.fix):
		r.cfg.Log.Warn("tokens of a cluster cannot be reviewed: its workloads get no first certificate",
			"cluster", r.cluster, "error", err, "fix", now.fix)
	case now == nil && last != nil:
		r.cfg.Log.Info("tokens of a cluster can be reviewed again", "cluster", r.cluster)
	}
}

// fixOf returns the fix for an error. Errors with the same fix are one problem.
func fixOf(err error) string {
	forbidden := apierrors.IsForbidden(err)
	switch {
	case apierrors.IsUnauthorized(err):
		return "give the cluster a credential that is valid"
	case errors.Is(err, errKeys) && (forbidden || apierrors.IsNotFound(err)):
		return "bind ClusterRole system:service-account-issuer-discovery to the credential's account"
	case errors.Is(err, errMayNot) || forbidden:
		return "grant create on tokenreviews.authentication.k8s.io to the credential's account"
	}
	return "check the API server's address and state"
}

func (r *reviewer) status() ReviewerStatus {
	st := ReviewerStatus{Cluster: r.cluster}
	if v := r.keys.get(); v != nil {
		st.Issuer = v.Issuer
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.problem; p != nil {
		st.Since = new(p.since.UTC())
		st.Problem = fmt.Sprintf("%v: tokens of this cluster cannot be reviewed, so its workloads get no first certificate; %s", p.err, p.fix)
	}
	return st
}

// refetch fetches new keys for a caller that waits for them.
func (r *reviewer) refetch(ctx context.Context) {
	if err := r.keys.refetch(ctx, r.ctx); err != nil && ctx.Err() == nil {
		r.fail(err)
	}
}

var errKeys = errors.New("read the token issuer's keys")

// fetchKeys fetches the issuer and the keys that the API server publishes.
func (r *reviewer) fetchKeys(ctx context.Context) (*token.Verifier, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	read := func(path string) ([]byte, error) {
		b, err := r.api.Get().AbsPath(path).MaxRetries(0).DoRaw(ctx)
		if err != nil {
			err = fmt.Errorf("%w: %s: %w", errKeys, path, err)
		}
		return b, err
	}
	discovery, err := read("/.well-known/openid-configuration")
	if err != nil {
		return nil, err
	}
	issuer, err := parseDiscovery(discovery)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errKeys, err)
	}
	doc, err := read("/openid/v1/jwks")
	if err != nil {
		return nil, err
	}
	set, err := token.ParseKeys(doc)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errKeys, err)
	}
	r.cfg.Log.Info("trusting the tokens of a cluster", "cluster", r.cluster, "issuer", issuer, "keys", len(set.Keys))
	return &token.Verifier{Issuer: issuer, Keys: set, Audiences: r.cfg.Audiences}, nil
}

// review asks the API server about a token with verified claims. Concurrent
// callers with the same token share one review. It returns the time at which the
// review began: the answer is at least as recent.
func (r *reviewer) review(ctx context.Context, raw string, claims token.Claims) (time.Time, error) {
	done := r.flight.DoChan(raw, func() (any, error) {
		began := r.cfg.Now()
		return began, r.ask(raw, claims) // does not end with the first caller: others wait
	})
	select {
	case result := <-done:
		began, _ := result.Val.(time.Time)
		return began, result.Err
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("%w: %w", errUndecided, ctx.Err())
	}
}

func (r *reviewer) ask(raw string, claims token.Claims) error {
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.reviewTimeout)
	defer cancel()
	leave, err := r.slots.Enter(ctx, serving.Caller{Source: claims.Namespace})
	if err != nil {
		r.count("error")
		return fmt.Errorf("%w: other reviews are under way, at most %d and %d of a namespace at a time", errUndecided, maxReviews, maxReviewsNamespace)
	}
	defer leave()
	// API servers cache accepted tokens for 10 s, by token and audiences. A random
	// audience makes them check again.
	audiences := append(slices.Clone(r.cfg.Audiences), "https://meshctl.local/review/"+rand.Text())
	answer, err := r.api.ReviewToken(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: raw, Audiences: audiences},
	})
	if err != nil {
		r.count("error")
		r.fail(err)
		return fmt.Errorf("%w: %w", errUndecided, err)
	}
	if err := judge(answer.Status, claims, r.cfg.Audiences); err != nil {
		r.count("refused")
		return err
	}
	r.count("accepted")
	return nil
}

// judge compares the result of a review with the claims of the token.
func judge(s authenticationv1.TokenReviewStatus, claims token.Claims, audiences []string) error {
	account := token.Subject(claims.Namespace, claims.ServiceAccount)
	switch {
	case !s.Authenticated:
		return fmt.Errorf("the API server refuses the token: %.300q", s.Error)
	case s.User.Username != account:
		return fmt.Errorf("the API server says that the token belongs to %.300q, but it names %s", s.User.Username, account)
	case !slices.ContainsFunc(s.Audiences, func(a string) bool { return slices.Contains(audiences, a) }):
		return fmt.Errorf("the API server accepts the token for %.300q: want one of %q", s.Audiences, audiences)
	}
	return nil
}

func (r *reviewer) count(result string) {
	if r.cfg.Reviewed != nil {
		r.cfg.Reviewed(r.cluster, result)
	}
}

// fail records an error and makes run probe until reviews work again.
func (r *reviewer) fail(err error) {
	r.note(err)
	select {
	case r.failed <- struct{}{}:
	default:
	}
}
