package identity

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/token"
)

const (
	// askTimeout bounds each question to an API server, the wait for a turn
	// included.
	askTimeout = 5 * time.Second
	// maxReviews is how many reviews of one cluster are under way at once.
	maxReviews = 64
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = token.MaxKeySetSize + 1
	// probeInterval is how often it is checked that tokens could be reviewed.
	probeInterval = 5 * time.Minute
	minProbeRetry = time.Second
	maxProbeRetry = 15 * time.Second
)

// errUndecided is in the error for a token that could be good: nobody could
// be asked.
var errUndecided = errors.New("the token was not reviewed")

// reviewer reviews the tokens of one cluster.
type reviewer struct {
	cfg     *ReviewersConfig
	cluster mesh.ClusterID
	keys    keys
	client  *http.Client
	api     *kube.Client
	slots   chan struct{} // one for each review that may be under way
	failed  chan struct{} // has one when a review failed, so that it is probed

	// ctx is the life of the cluster: it ends questions that are under way.
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex // guards what follows
	flights map[[sha256.Size]byte]*flight
	problem *problem
}

// flight is one review, for all who wait for it.
type flight struct {
	done  chan struct{} // closed when err is there
	began time.Time
	err   error
}

// problem is why tokens cannot be reviewed.
type problem struct {
	kind  string // which is logged once
	err   error
	since time.Time
}

func newReviewer(ctx context.Context, cfg *ReviewersConfig, id mesh.ClusterID, access *rest.Config) (*reviewer, error) {
	access = rest.CopyConfig(access)
	access.QPS = -1 // slots bound it
	access.Wrap(func(next http.RoundTripper) http.RoundTripper { return shortAnswers{next} })
	client, err := rest.HTTPClientFor(access)
	if err != nil {
		return nil, err
	}
	client.CheckRedirect = func(req *http.Request, _ []*http.Request) error {
		return fmt.Errorf("redirected to %s, which is not followed", req.URL.Redacted())
	}
	r := &reviewer{
		cfg: cfg, cluster: id, client: client,
		slots: make(chan struct{}, maxReviews), failed: make(chan struct{}, 1), flights: make(map[[sha256.Size]byte]*flight),
	}
	if r.api, err = kube.NewClientWith(access, client); err != nil {
		return nil, err
	}
	r.keys.fetch, r.keys.now = r.fetchKeys, cfg.Now
	r.ctx, r.stop = context.WithCancel(ctx)
	return r, nil
}

// run checks now and then, and after each failure, that tokens can be
// reviewed, so that the status is right before a workload asks.
func (r *reviewer) run() {
	defer r.client.CloseIdleConnections()
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

// wait waits, after a failure no longer than for the first retry. It reports
// whether the cluster is still there.
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

// probe reads the keys if there are none, and asks whether the credential may
// create reviews.
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
		return fmt.Errorf("ask what the credential may do: %w", err)
	case !answer.Status.Allowed:
		return errMayNot
	}
	return nil
}

var errMayNot = errors.New("the credential may not create tokenreviews.authentication.k8s.io")

// note keeps why tokens cannot be reviewed, or that they can. Each kind of
// problem is logged once.
func (r *reviewer) note(err error) {
	if err != nil && r.ctx.Err() != nil {
		return // the cluster was removed
	}
	r.mu.Lock()
	last := r.problem
	r.problem = nil
	if err != nil {
		r.problem = &problem{kind: kindOf(err), err: err, since: r.cfg.Now()}
		if last != nil {
			r.problem.since = last.since
		}
	}
	now := r.problem
	r.mu.Unlock()
	switch {
	case now != nil && (last == nil || last.kind != now.kind):
		r.cfg.Log.Warn("tokens of a cluster cannot be reviewed: its workloads get no first certificate",
			"cluster", r.cluster, "error", err, "fix", fixes[now.kind])
	case now == nil && last != nil:
		r.cfg.Log.Info("tokens of a cluster can be reviewed again", "cluster", r.cluster)
	}
}

// Kinds of problems.
const (
	kindForbidden    = "forbidden"
	kindUnauthorized = "unauthorized"
	kindNoKeys       = "no keys"
	kindUnreachable  = "unreachable"
)

// fixes say how each kind is repaired.
var fixes = map[string]string{
	kindForbidden:    "grant create on tokenreviews.authentication.k8s.io to the credential's account",
	kindUnauthorized: "give the cluster a credential that is valid",
	kindNoKeys:       "bind ClusterRole system:service-account-issuer-discovery to the credential's account",
	kindUnreachable:  "check the API server's address and state",
}

func kindOf(err error) string {
	switch {
	case errors.Is(err, errMayNot):
		return kindForbidden
	case apierrors.IsUnauthorized(err):
		return kindUnauthorized
	case errors.Is(err, errKeys) && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)):
		return kindNoKeys
	case apierrors.IsForbidden(err):
		return kindForbidden
	}
	return kindUnreachable
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
		st.Problem = fmt.Sprintf("%v: tokens of this cluster cannot be reviewed, so its workloads get no first certificate; %s", p.err, fixes[p.kind])
	}
	return st
}

// refetch is keys.refetch for a caller that waits.
func (r *reviewer) refetch(ctx context.Context) {
	if err := r.keys.refetch(ctx, r.ctx); err != nil {
		r.fail(err)
	}
}

var errKeys = errors.New("read the token issuer's keys")

// fetchKeys reads what the API server publishes of its token issuer.
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

// review asks the API server about a token whose claims were checked. Who asks
// for the same token meanwhile gets the same answer. It returns when the
// review began, which the answer is not younger than.
func (r *reviewer) review(ctx context.Context, raw string, claims token.Claims) (time.Time, error) {
	sum := sha256.Sum256([]byte(raw))
	r.mu.Lock()
	f := r.flights[sum]
	if f != nil {
		r.mu.Unlock()
		select {
		case <-f.done:
			return f.began, f.err
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%w: %w", errUndecided, ctx.Err())
		}
	}
	f = &flight{done: make(chan struct{}), began: r.cfg.Now()}
	r.flights[sum] = f
	r.mu.Unlock()

	f.err = r.ask(raw, claims) // others wait: it does not end with this caller
	r.mu.Lock()
	delete(r.flights, sum)
	r.mu.Unlock()
	close(f.done)
	return f.began, f.err
}

func (r *reviewer) ask(raw string, claims token.Claims) error {
	ctx, cancel := context.WithTimeout(r.ctx, askTimeout)
	defer cancel()
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		r.count("error")
		return fmt.Errorf("%w: %d others are under way", errUndecided, maxReviews)
	}
	// API servers keep good answers for 10 s, by token and audiences. An
	// audience that was never asked for makes them look anew.
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

// judge holds the answer of a review to what the token says.
func judge(s authenticationv1.TokenReviewStatus, claims token.Claims, audiences []string) error {
	account := token.Subject(claims.Namespace, claims.ServiceAccount)
	switch {
	case !s.Authenticated:
		return fmt.Errorf("the API server refuses the token: %.300q", s.Error)
	case s.User.Username != account:
		return fmt.Errorf("the API server takes the token for that of %.300q, but it says %s", s.User.Username, account)
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

// fail notes an error, and has the state be probed until it is well again.
func (r *reviewer) fail(err error) {
	r.note(err)
	select {
	case r.failed <- struct{}{}:
	default:
	}
}

// shortAnswers keeps API servers from sending more than maxAnswer bytes.
type shortAnswers struct{ next http.RoundTripper }

func (s shortAnswers) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(req)
	if err == nil {
		resp.Body = &shortBody{resp.Body, maxAnswer}
	}
	return resp, err
}

type shortBody struct {
	io.ReadCloser
	left int
}

func (b *shortBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
