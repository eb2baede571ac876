// Package credentials decides who is given private keys: a service account for
// which the API server of its own cluster says that it may list the Secrets of
// its namespace. Nobody waits for that answer: who asks first is told that it is
// not decided, and to look again when it is. While somebody looks, the API server
// is asked again before an answer is too old to count.
//
// Reviews is guarded by one lock; Run owns all questions that are under way.
package credentials

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/token"
)

const (
	// allowedFor is how long a right counts after it was asked for, renewAfter
	// when it is asked for again, deniedFor how long a denial counts.
	allowedFor = 30 * time.Second
	renewAfter = 20 * time.Second
	deniedFor  = time.Minute
	// failedFor is how long an API server that did not answer is left alone.
	failedFor = 2 * time.Second
	// tick is how often it is looked what is due.
	tick = time.Second
	// askTimeout bounds one question, maxAnswer its answer, in bytes.
	askTimeout = 5 * time.Second
	maxAnswer  = 64 << 10
	// maxAsking is how many questions are under way at once.
	maxAsking = 16
	// maxAccounts bounds how many accounts are remembered, maxPods how many pods
	// of one are told to look again.
	maxAccounts = 10_000
	maxPods     = 10_000
)

// Config says whom Reviews tells. All fields are required.
type Config struct {
	// Changed has the streams of pods, named as snapshot.PodKey does, look again
	// at what they may have. It must not block.
	Changed func(pods []string)
	Log     *slog.Logger
	Now     func() time.Time
}

// Reviews are the answers of API servers.
type Reviews struct {
	cfg  Config
	wake chan struct{} // capacity 1: something is due

	mu       sync.Mutex
	clusters map[mesh.ClusterID]*cluster
	accounts map[account]*answer
	asking   int
}

// cluster is how the API server of a cluster is asked.
type cluster struct {
	client *http.Client
	api    *kube.Client
	fault  string // of the last question, as it was logged
}

// account is a service account of one cluster.
type account struct {
	cluster         mesh.ClusterID
	namespace, name string
}

// answer is what is known of an account's right.
type answer struct {
	until time.Time           // the right counts until then; zero when there is none
	why   error               // why there is none
	due   time.Time           // when to ask next
	busy  bool                // it is being asked for
	pods  map[string]struct{} // that have looked since they were told last
}

// New makes reviews of no cluster; Run makes them work.
func New(cfg Config) *Reviews {
	return &Reviews{
		cfg: cfg, wake: make(chan struct{}, 1),
		clusters: make(map[mesh.ClusterID]*cluster), accounts: make(map[account]*answer),
	}
}

// SetCluster has rights in the cluster be asked for with that access. What is
// known of them still counts.
func (r *Reviews) SetCluster(id mesh.ClusterID, access *rest.Config) error {
	access = rest.CopyConfig(access)
	access.QPS = -1 // maxAsking bounds it
	access.Wrap(func(next http.RoundTripper) http.RoundTripper { return dial.Bounded(next, maxAnswer) })
	client, err := rest.HTTPClientFor(access)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", id, err)
	}
	api, err := kube.NewClientWith(access, client)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", id, err)
	}
	r.mu.Lock()
	old := r.clusters[id]
	r.clusters[id] = &cluster{client: client, api: api}
	r.mu.Unlock()
	old.close()
	r.signal()
	return nil
}

// RemoveCluster takes the rights of all accounts of the cluster away.
func (r *Reviews) RemoveCluster(id mesh.ClusterID) {
	r.mu.Lock()
	old := r.clusters[id]
	delete(r.clusters, id)
	var pods []string
	for a, known := range r.accounts {
		if a.cluster == id {
			pods = slices.AppendSeq(pods, maps.Keys(known.pods))
			delete(r.accounts, a)
		}
	}
	r.mu.Unlock()
	old.close()
	r.tell(pods)
}

func (c *cluster) close() {
	if c != nil {
		utilnet.CloseIdleConnectionsFor(c.client.Transport)
	}
}

// MayRead reports by nil that the caller, who runs as that pod, may be given the
// keys of its namespace. It does not wait: the pod is told when that changes.
func (r *Reviews) MayRead(caller mesh.Caller, pod string) error {
	id := caller.Identity
	if caller.Cluster == "" || id.Namespace == "" || id.ServiceAccount == "" {
		return errors.New("it did not prove who it is")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clusters[caller.Cluster] == nil {
		return fmt.Errorf("no API server of cluster %s can be asked for its rights", caller.Cluster)
	}
	key := account{caller.Cluster, id.Namespace, id.ServiceAccount}
	known := r.accounts[key]
	if known == nil {
		if len(r.accounts) >= maxAccounts {
			return fmt.Errorf("more than %d service accounts ask for secrets", maxAccounts)
		}
		known = &answer{pods: make(map[string]struct{})}
		r.accounts[key] = known
		r.signal()
	}
	if len(known.pods) < maxPods {
		known.pods[pod] = struct{}{}
	}
	switch {
	case r.cfg.Now().Before(known.until):
		return nil
	case known.why != nil:
		return known.why
	}
	return xdsgen.ErrUndecided
}

func (r *Reviews) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Reviews) tell(pods []string) {
	if len(pods) > 0 {
		r.cfg.Changed(pods)
	}
}

// Run asks until ctx ends, when it returns nil.
func (r *Reviews) Run(ctx context.Context) error {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		for _, key := range r.takeDue() {
			asking.Go(func() { r.ask(ctx, key) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		case <-r.wake:
		}
	}
}

// takeDue returns whose rights are to be asked for now, and ends rights that are
// too old. Whom nobody asks for any more is forgotten.
func (r *Reviews) takeDue() []account {
	now := r.cfg.Now()
	var due []account
	var ended []string
	r.mu.Lock()
	for key, known := range r.accounts {
		if !known.until.IsZero() && !now.Before(known.until) {
			known.until = time.Time{}
			ended = append(ended, known.takePods()...)
		}
		switch {
		case known.busy || now.Before(known.due) || r.asking >= maxAsking:
		case len(known.pods) == 0:
			delete(r.accounts, key)
		default:
			known.busy = true
			r.asking++
			due = append(due, key)
		}
	}
	r.mu.Unlock()
	r.tell(ended)
	return due
}

func (a *answer) takePods() []string {
	pods := slices.Collect(maps.Keys(a.pods))
	clear(a.pods)
	return pods
}

// ask asks for the right of one account and tells its pods when it changed or
// is new. They look again then, which is how it is known that they are there.
func (r *Reviews) ask(ctx context.Context, key account) {
	r.mu.Lock()
	c := r.clusters[key.cluster]
	r.mu.Unlock()
	began := r.cfg.Now()
	var status authorizationv1.SubjectAccessReviewStatus
	err := fmt.Errorf("cluster %s is gone", key.cluster)
	if c != nil {
		status, err = c.review(ctx, key)
	}
	r.mu.Lock()
	r.asking--
	known := r.accounts[key]
	if known == nil {
		r.mu.Unlock()
		return
	}
	known.busy = false
	if r.clusters[key.cluster] != c { // which is asked anew
		r.mu.Unlock()
		r.signal()
		return
	}
	switch {
	case err != nil:
		// A right that was found counts for as long as it does anyway.
		known.due = r.cfg.Now().Add(failedFor)
		known.why = fmt.Errorf("the API server of cluster %s cannot be asked whether %s/%s may read secrets", key.cluster, key.name, key.namespace)
	case status.Allowed && !status.Denied:
		known.until, known.due, known.why = began.Add(allowedFor), began.Add(renewAfter), nil
	default:
		known.until, known.due = time.Time{}, began.Add(deniedFor)
		known.why = fmt.Errorf("%s/%s is not authorized to read secrets: %.200q", key.name, key.namespace, status.Reason)
	}
	pods := known.takePods()
	fault := c.note(err)
	r.mu.Unlock()
	if fault != "" && ctx.Err() == nil {
		r.cfg.Log.Warn("rights to read secrets cannot be asked for: gateways of the cluster are given no keys", "cluster", key.cluster, "error", fault)
	}
	r.tell(pods)
	r.signal() // for what had to wait for its turn
}

// note returns what is to be logged of an error: each only once in a row.
func (c *cluster) note(err error) string {
	switch {
	case c == nil:
		return ""
	case err == nil:
		c.fault = ""
		return ""
	case err.Error() == c.fault:
		return ""
	}
	c.fault = err.Error()
	return c.fault
}

// review asks for the right as the account itself would have it.
func (c *cluster) review(ctx context.Context, a account) (authorizationv1.SubjectAccessReviewStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	review, err := c.api.ReviewAccess(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   token.Subject(a.namespace, a.name),
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + a.namespace, "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: a.namespace, Verb: "list", Version: "v1", Resource: "secrets",
			},
		},
	})
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, err
	}
	return review.Status, nil
}
