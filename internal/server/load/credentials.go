package load

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// requestsAtOnce bounds the requests to the API servers at a time.
const requestsAtOnce = 16

// Credentials holds the Secrets that Gateways name, as far as the caller may read them.
type Credentials struct {
	// Unread states what could not be read, and why.
	Unread []error

	mu      sync.Mutex
	secrets map[snapshot.Key]*snapshot.Secret // nil for one that does not exist
	denied  map[snapshot.Account]string
}

// Secret returns a Secret for analyze.Options.
func (c *Credentials) Secret(k snapshot.Key) (secret *snapshot.Secret, known bool) {
	secret, known = c.secrets[k]
	return secret, known
}

// MayNotRead returns why an account gets no private keys, for analyze.Options.
func (c *Credentials) MayNotRead(a snapshot.Account) string { return c.denied[a] }

// Credentials reads Secrets from the APIs of their clusters, one by one, and asks the API servers
// whether accounts may read Secrets. Secrets in files precede.
func (m *Mesh) Credentials(ctx context.Context, keys []snapshot.Key, accounts []snapshot.Account) (*Credentials, error) {
	out := &Credentials{secrets: make(map[snapshot.Key]*snapshot.Secret), denied: make(map[snapshot.Account]string)}
	apis := make(map[mesh.ClusterID]*kube.Client)
	defer func() {
		for _, api := range apis {
			api.Close()
		}
	}()
	for i := range m.cfg.Clusters {
		c := &m.cfg.Clusters[i]
		if c.Config == nil {
			continue
		}
		api, err := kube.NewClient(c.Config)
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", c.ID, err)
		}
		apis[c.ID] = api
	}
	var running errgroup.Group
	running.SetLimit(requestsAtOnce)
	for _, k := range keys {
		given := m.Snapshot.Secrets.Get(snapshot.SecretKey(k.Cluster, k.Namespace, k.Name))
		if api := apis[k.Cluster]; given != nil || api == nil {
			out.set(k, given)
		} else {
			running.Go(func() error { out.read(ctx, api, k); return nil })
		}
	}
	for _, a := range accounts {
		if api := apis[a.Cluster]; api != nil {
			running.Go(func() error { out.review(ctx, api, a); return nil })
		}
	}
	_ = running.Wait() // no function fails
	slices.SortFunc(out.Unread, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return out, ctx.Err()
}

func (c *Credentials) set(k snapshot.Key, s *snapshot.Secret) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.secrets[k] = s
}

// miss notes once what cannot be read.
func (c *Credentials) miss(format string, args ...any) {
	why := fmt.Errorf(format, args...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.ContainsFunc(c.Unread, func(known error) bool { return known.Error() == why.Error() }) {
		c.Unread = append(c.Unread, why)
	}
}

// read reads a Secret. One without a usable certificate has the reason.
func (c *Credentials) read(ctx context.Context, api *kube.Client, k snapshot.Key) {
	given, err := api.Secrets(k.Namespace).Get(ctx, k.Name)
	switch {
	case apierrors.IsNotFound(err):
		c.set(k, nil)
		return
	case apierrors.IsForbidden(err):
		c.miss("cluster %s: you may not get Secrets of namespace %s, so the certificates of gateways there are not checked", k.Cluster, k.Namespace)
		return
	case err != nil:
		c.miss("cluster %s: Secret %s/%s: %w", k.Cluster, k.Namespace, k.Name, err)
		return
	}
	conv := source.Converter{Cluster: k.Cluster}
	r, err := conv.Convert(given, snapshot.Place{})
	s, ok := r.Object.(*snapshot.Secret)
	if !ok {
		why := fmt.Sprintf("its type is %s, want kubernetes.io/tls or Opaque", given.Type)
		if err != nil {
			why = err.Error()
		}
		s = &snapshot.Secret{NoPair: why, NoCA: why}
	}
	c.set(k, s)
}

// review finds out whether an account may list the Secrets of its namespace, as control planes do
// before they give it private keys.
func (c *Credentials) review(ctx context.Context, api *kube.Client, a snapshot.Account) {
	answer, err := api.MayListSecrets(ctx, a.Namespace, a.Name)
	switch {
	case err != nil:
		c.miss("cluster %s: whether gateways may read their Secrets is not checked: %w", a.Cluster, err)
	case !answer.Allowed:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.denied[a] = "may not list the Secrets of its namespace"
	}
}
