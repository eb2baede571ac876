package publish

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

const (
	// tokensInterval is the interval between checks of the remote secrets. It allows
	// several attempts in the last third of the shortest token, which lives ten
	// minutes.
	tokensInterval = 30 * time.Second
	// renewalsAtOnce bounds the concurrent renewals, as a cluster that does not
	// answer takes a while.
	renewalsAtOnce = 8
)

// TokensConfig configures Tokens. Written may be nil.
type TokensConfig struct {
	API       *rest.Config // of the own cluster
	Namespace string       // of the remote secrets
	// Reach returns the access to the cluster of a remote secret, or refuses it.
	Reach func(*remotesecret.Cluster) (*rest.Config, error)
	// Written counts each renewal.
	Written func(cluster mesh.ClusterID, result string)
	// Interval is the interval between checks of the remote secrets; default 30 s.
	Interval time.Duration
	Now      func() time.Time
	Log      *slog.Logger
}

// Tokens renew the expiring tokens of remote secrets after two thirds of their lifetime,
// with the tokens themselves. They only renew tokens that are bound to their own
// Secret, as `create-remote-secret --ttl` makes them.
type Tokens struct {
	cfg TokensConfig

	mu       sync.Mutex
	statuses map[string]TokenStatus // by place
}

// TokenStatus reports the state of the token of one cluster.
type TokenStatus struct {
	Cluster mesh.ClusterID
	Secret  string    // namespace/name
	Ends    time.Time `json:",omitzero"`
	// Problem is the reason why a due renewal failed.
	Problem string `json:",omitempty"`
}

// NewTokens returns Tokens. Run renews them.
func NewTokens(cfg TokensConfig) *Tokens {
	return &Tokens{cfg: cfg, statuses: make(map[string]TokenStatus)}
}

// secretsAPI are the Secrets of a namespace.
type secretsAPI = kube.Objects[*corev1.Secret, *corev1.SecretList]

// Status returns the status of all renewed tokens, by Secret.
func (t *Tokens) Status() []TokenStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]TokenStatus, 0, len(t.statuses))
	for _, place := range slices.Sorted(maps.Keys(t.statuses)) {
		out = append(out, t.statuses[place])
	}
	return out
}

// Run renews tokens until ctx ends. It is a Task.
func (t *Tokens) Run(ctx context.Context) error {
	api := rest.CopyConfig(t.cfg.API)
	api.Timeout = kube.RequestTimeout
	core, err := kube.NewClient(api)
	if err != nil {
		return fmt.Errorf("renew the tokens of remote secrets: %w", err)
	}
	defer t.set(nil) // the next holder of the Lease reports them
	tick := time.NewTicker(cmp.Or(t.cfg.Interval, tokensInterval))
	defer tick.Stop()
	for told := ""; ; {
		problem := ""
		if err := t.look(ctx, core.Secrets(t.cfg.Namespace)); err != nil && ctx.Err() == nil {
			problem = err.Error()
			if problem != told {
				t.cfg.Log.Error("remote secrets cannot be listed to renew their tokens", "namespace", t.cfg.Namespace, "error", err)
			}
		}
		told = problem
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look renews the tokens that are due.
func (t *Tokens) look(ctx context.Context, secrets secretsAPI) error {
	list, err := secrets.List(ctx, metav1.ListOptions{LabelSelector: remotesecret.Selector})
	if err != nil {
		return err
	}
	statuses := make([]*TokenStatus, len(list.Items))
	var g errgroup.Group
	g.SetLimit(renewalsAtOnce)
	for i := range list.Items {
		g.Go(func() error {
			statuses[i] = t.keep(ctx, secrets, &list.Items[i])
			return nil
		})
	}
	_ = g.Wait() // keep returns no error
	if ctx.Err() == nil {
		t.set(statuses)
	}
	return nil
}

// set replaces the statuses, and logs each problem once.
func (t *Tokens) set(statuses []*TokenStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.statuses
	t.statuses = make(map[string]TokenStatus)
	for _, st := range statuses {
		if st == nil {
			continue
		}
		t.statuses[st.Secret] = *st
		if st.Problem != "" && st.Problem != before[st.Secret].Problem {
			t.cfg.Log.Error("the token of a remote secret cannot be renewed",
				"cluster", st.Cluster, "secret", st.Secret, "ends", st.Ends, "error", st.Problem)
		}
	}
}

// keep renews the token of one remote secret if it is due. It returns nil if the token
// must not be renewed.
func (t *Tokens) keep(ctx context.Context, secrets secretsAPI, secret *corev1.Secret) *TokenStatus {
	clusters := remotesecret.Decode(secret)
	if len(clusters) != 1 || !clusters[0].Renewed || clusters[0].Err != nil {
		return nil
	}
	c := &clusters[0]
	st := &TokenStatus{Cluster: c.ID, Secret: secret.Namespace + "/" + secret.Name}
	claims, err := remotesecret.ReadToken(c.BearerToken())
	if err != nil || claims.Expiry.IsZero() || claims.IssuedAt.IsZero() {
		st.Problem = "the Secret says that its token ends, but the token does not say when"
		return st
	}
	st.Ends = claims.Expiry
	life := claims.Expiry.Sub(claims.IssuedAt)
	if t.cfg.Now().Before(claims.IssuedAt.Add(life / 3 * 2)) {
		return st
	}
	ends, err := t.renew(ctx, secrets, secret, c, life)
	result := Updated
	if err != nil {
		st.Problem, result = err.Error(), Failed
	} else {
		st.Ends = ends
		t.cfg.Log.Info("the token of a remote secret was renewed", "cluster", c.ID, "secret", st.Secret, "ends", ends)
	}
	if t.cfg.Written != nil && ctx.Err() == nil {
		t.cfg.Written(c.ID, result)
	}
	return st
}

// renew requests a new token from the cluster with the old one, and writes it into the
// Secret unless the Secret has changed.
func (t *Tokens) renew(
	ctx context.Context, secrets secretsAPI, secret *corev1.Secret, c *remotesecret.Cluster, life time.Duration,
) (time.Time, error) {
	account, err := create.AccountOf(c)
	if err != nil {
		return time.Time{}, err
	}
	namespace, bound, _ := strings.Cut(secret.Annotations[remotesecret.AnnotationBoundTo], "/")
	if namespace != account.Namespace || bound == "" {
		return time.Time{}, fmt.Errorf("annotation %s: %q names no Secret of namespace %s, where the account is",
			remotesecret.AnnotationBoundTo, secret.Annotations[remotesecret.AnnotationBoundTo], account.Namespace)
	}
	access, err := t.cfg.Reach(c)
	if err != nil {
		return time.Time{}, err
	}
	defer kube.Close(access)
	asking, cancel := context.WithTimeout(ctx, kube.RequestTimeout)
	defer cancel()
	token, ends, err := create.Renew(asking, access, account, bound, life)
	if err != nil {
		return time.Time{}, err
	}
	next, err := remotesecret.WithToken(secret, token, ends)
	if err != nil {
		return time.Time{}, err
	}
	if _, err := secrets.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		return time.Time{}, fmt.Errorf("write the renewed token: %w", err)
	}
	return ends, nil
}
