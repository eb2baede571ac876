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

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
)

const (
	// allowedFor is how long an allowed access counts after its query began, renewAfter
	// the time until the next query, deniedFor how long a denial counts.
	allowedFor = 30 * time.Second
	renewAfter = 20 * time.Second
	deniedFor  = time.Minute
	// failedFor is the pause after a query that failed.
	failedFor = 2 * time.Second
	// accessTick is the interval between checks for due queries.
	accessTick = time.Second
	// maxAccessAnswer bounds the response to a query, in bytes.
	maxAccessAnswer = 64 << 10
	// maxAsking bounds the concurrent queries to one API server, so that a slow one does not
	// delay those to others.
	maxAsking = 16
	// maxAccounts bounds the remembered accounts of one cluster, maxAccountsNamespace those of one
	// namespace there, and maxPods the remembered pods of one account.
	maxAccounts          = 10_000
	maxAccountsNamespace = 1000
	maxPods              = 10_000
)

// SecretAccessConfig configures SecretAccess. All fields are required.
type SecretAccessConfig struct {
	// Changed makes the streams of pods, named as by snapshot.PodKey, call MayRead
	// again. It must not block.
	Changed func(pods []string)
	Log     *slog.Logger
	Now     func() time.Time
}

// SecretAccess decides which callers may read private keys: a service account
// that may list the Secrets of its namespace, according to the API server of its
// own cluster. MayRead never waits for that server: the first query of an account
// returns xdsgen.ErrUndecided, and Config.Changed asks its pods to look again when
// the answer has arrived. While pods look, the answer is renewed before it expires.
//
// One lock guards the state; Run owns the queries in progress.
type SecretAccess struct {
	cfg  SecretAccessConfig
	wake chan struct{} // capacity 1: something is due

	mu       sync.Mutex
	clusters map[mesh.ClusterID]*kube.Client
	faults   map[mesh.ClusterID]string // error of the last query, as logged
	accounts map[serviceAccount]*accessAnswer
	numbers  map[serviceAccount]int // of the accounts of a cluster, and of a namespace there
	asking   map[mesh.ClusterID]int // queries in progress
}

// serviceAccount is a service account of one cluster.
type serviceAccount struct {
	cluster         mesh.ClusterID
	namespace, name string
}

// accessAnswer is the last answer for an account.
type accessAnswer struct {
	until time.Time           // end of an allowed access; zero if not allowed
	why   error               // reason if not allowed
	due   time.Time           // of the next query
	busy  bool                // a query is in progress
	pods  map[string]struct{} // that called MayRead since the last change
}

// NewSecretAccess returns a SecretAccess without clusters. Run makes it work.
func NewSecretAccess(cfg SecretAccessConfig) *SecretAccess {
	return &SecretAccess{
		cfg: cfg, wake: make(chan struct{}, 1),
		clusters: make(map[mesh.ClusterID]*kube.Client), faults: make(map[mesh.ClusterID]string), accounts: make(map[serviceAccount]*accessAnswer),
		numbers: make(map[serviceAccount]int),
		asking:  make(map[mesh.ClusterID]int),
	}
}

// SetCluster sends the queries for a cluster with the given access. Known answers
// still count.
func (r *SecretAccess) SetCluster(id mesh.ClusterID, access *rest.Config) error {
	api, err := kube.NewBoundedClient(access, maxAccessAnswer)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", id, err)
	}
	r.mu.Lock()
	old := r.clusters[id]
	r.clusters[id] = api
	delete(r.faults, id)
	r.mu.Unlock()
	old.Close()
	r.signal()
	return nil
}

// RemoveCluster ends the access of all accounts of a cluster.
func (r *SecretAccess) RemoveCluster(id mesh.ClusterID) {
	r.mu.Lock()
	old := r.clusters[id]
	delete(r.clusters, id)
	delete(r.faults, id)
	var pods []string
	for a, known := range r.accounts {
		if a.cluster == id {
			pods = slices.AppendSeq(pods, maps.Keys(known.pods))
			r.forget(a)
		}
	}
	r.mu.Unlock()
	old.Close()
	r.notify(pods)
}

// MayRead returns nil if the caller, which runs as the pod, may read the private keys
// of its namespace. It does not wait: Config.Changed gets the pod when the answer
// changes.
func (r *SecretAccess) MayRead(caller mesh.Caller, pod string) error {
	id := caller.Identity
	if caller.Cluster == "" || id.Namespace == "" || id.ServiceAccount == "" {
		return errors.New("it did not prove its cluster and service account")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clusters[caller.Cluster] == nil {
		return fmt.Errorf("no API server of cluster %s can be asked for its permissions", caller.Cluster)
	}
	key := serviceAccount{caller.Cluster, id.Namespace, id.ServiceAccount}
	known := r.accounts[key]
	if known == nil {
		var err error
		if known, err = r.remember(key); err != nil {
			return err
		}
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
	return units.ErrUndecided
}

// remember adds an account, or returns an error if too many of its cluster, or of its namespace there,
// are remembered. The lock must be held.
func (r *SecretAccess) remember(a serviceAccount) (*accessAnswer, error) {
	inCluster, inNamespace := serviceAccount{cluster: a.cluster}, serviceAccount{cluster: a.cluster, namespace: a.namespace}
	switch {
	case r.numbers[inNamespace] >= maxAccountsNamespace:
		return nil, fmt.Errorf("more than %d service accounts of namespace %s ask for secrets", maxAccountsNamespace, a.namespace)
	case r.numbers[inCluster] >= maxAccounts:
		return nil, fmt.Errorf("more than %d service accounts of cluster %s ask for secrets", maxAccounts, a.cluster)
	}
	r.numbers[inCluster]++
	r.numbers[inNamespace]++
	known := &accessAnswer{pods: make(map[string]struct{})}
	r.accounts[a] = known
	return known, nil
}

// forget removes a remembered account. The lock must be held.
func (r *SecretAccess) forget(a serviceAccount) {
	delete(r.accounts, a)
	for _, of := range []serviceAccount{{cluster: a.cluster}, {cluster: a.cluster, namespace: a.namespace}} {
		if r.numbers[of]--; r.numbers[of] == 0 {
			delete(r.numbers, of)
		}
	}
}

func (r *SecretAccess) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *SecretAccess) notify(pods []string) {
	if len(pods) > 0 {
		r.cfg.Changed(pods)
	}
}

// Run sends queries until ctx ends; then it returns nil.
func (r *SecretAccess) Run(ctx context.Context) error {
	ticks := time.NewTicker(accessTick)
	defer ticks.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		for key, api := range r.takeDue() {
			asking.Go(func() { r.ask(ctx, key, api) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		case <-r.wake:
		}
	}
}

// takeDue returns the accounts to query now, and the API servers to ask. It ends expired
// access and forgets accounts without pods that look.
func (r *SecretAccess) takeDue() map[serviceAccount]*kube.Client {
	now := r.cfg.Now()
	due := make(map[serviceAccount]*kube.Client)
	var ended []string
	r.mu.Lock()
	for key, known := range r.accounts {
		if !known.until.IsZero() && !now.Before(known.until) {
			known.until = time.Time{}
			ended = append(ended, known.takePods()...)
		}
		switch {
		case known.busy || now.Before(known.due) || r.asking[key.cluster] >= maxAsking:
		case len(known.pods) == 0:
			r.forget(key)
		default:
			known.busy = true
			r.asking[key.cluster]++
			due[key] = r.clusters[key.cluster]
		}
	}
	r.mu.Unlock()
	r.notify(ended)
	return due
}

func (a *accessAnswer) takePods() []string {
	pods := slices.Collect(maps.Keys(a.pods))
	clear(a.pods)
	return pods
}

// ask queries the access of one account and notifies its pods. Those that still exist
// call MayRead again.
func (r *SecretAccess) ask(ctx context.Context, key serviceAccount, api *kube.Client) {
	began := r.cfg.Now()
	status, err := review(ctx, api, key)
	r.mu.Lock()
	if r.asking[key.cluster]--; r.asking[key.cluster] == 0 {
		delete(r.asking, key.cluster)
	}
	known := r.accounts[key]
	if known == nil {
		r.mu.Unlock()
		return
	}
	known.busy = false
	if r.clusters[key.cluster] != api { // the cluster has another access: ask again
		r.mu.Unlock()
		r.signal()
		return
	}
	fault, faultBefore := "", r.faults[key.cluster]
	switch {
	case err != nil:
		fault = err.Error()
		// An earlier answer counts until it expires.
		known.due = r.cfg.Now().Add(failedFor)
		known.why = fmt.Errorf("the API server of cluster %s cannot be asked whether %s/%s may read secrets", key.cluster, key.name, key.namespace)
	case status.Allowed && !status.Denied:
		known.until, known.due, known.why = began.Add(allowedFor), began.Add(renewAfter), nil
	default:
		known.until, known.due = time.Time{}, began.Add(deniedFor)
		known.why = fmt.Errorf("%s/%s is not authorized to read secrets: %.200q", key.name, key.namespace, status.Reason)
	}
	pods := known.takePods()
	r.faults[key.cluster] = fault
	r.mu.Unlock()
	if fault != "" && fault != faultBefore && ctx.Err() == nil {
		r.cfg.Log.Warn("permissions to read secrets cannot be checked: gateways of the cluster get no keys", "cluster", key.cluster, "error", fault)
	}
	r.notify(pods)
	r.signal() // for accounts that wait because of maxAsking
}

// review asks the API server whether the account may list Secrets.
func review(ctx context.Context, api *kube.Client, a serviceAccount) (authorizationv1.SubjectAccessReviewStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return api.MayListSecrets(ctx, a.namespace, a.name)
}
