// Package replicas finds the control planes of a cluster and reads their status
// pages, over HTTP or xDS. Each replica keeps a Lease with its addresses and the
// clusters that it reads; replicas without a Lease are found as pods. Status pages
// serve only callers on their machine, so the package reaches pods through the API
// server's port-forward. It opens no port for that.
package replicas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// identifyTimeout bounds the first request to an address.
	identifyTimeout = 5 * time.Second
	// maxReplicas bounds the replicas, atOnce the requests at the same time.
	maxReplicas = 100
	atOnce      = 10
	// maxPage bounds one status page, in bytes.
	maxPage = 256 << 20
)

// IdentityPath is the path of the status page with the Identity of a replica.
const IdentityPath = "/debug/replica"

// Identity identifies the control plane at an address, and what it must have in common with the
// others of its mesh. Older versions do not tell the fields after Cluster.
type Identity struct {
	Replica  string
	Cluster  mesh.ClusterID
	Revision string `json:",omitempty"`
	MeshID   string `json:",omitempty"`
	// TrustDomains are the trust domain and its aliases.
	TrustDomains []string `json:",omitempty"`
	// SignsBelow are the fingerprints of the roots above its signer, and Trusts those of its CA's roots
	// and of all trust bundles.
	SignsBelow, Trusts []string `json:",omitempty"`
}

// Tokens returns the tokens for status pages. An empty token is not sent.
type Tokens struct {
	// At returns the token for an address, host:port.
	At func(address string) (string, error)
	// Pod returns the token for replicas in pods. If it is nil, the API server makes a
	// token of the service account default in their namespace.
	Pod func() (string, error)
}

// Options configures Find.
type Options struct {
	// Access is the API of the control planes' cluster, Namespace their namespace.
	Access    *rest.Config
	Namespace string
	Tokens    Tokens
	// Timeout bounds one request to a status page with its response.
	Timeout time.Duration
	Now     func() time.Time
}

// ErrNone reports that no replica was found.
var ErrNone = errors.New("no control plane of meshctl was found")

// ErrOtherCluster reports that a replica runs in another cluster than the one that it reads.
// Its status pages need a token of the cluster that it reads, and a connection to the one
// that it runs in, so only its port for xDS serves both.
var ErrOtherCluster = errors.New("read its status over xDS: meshctl proxy-status --xds-address ADDRESS:15012")

// Announced returns the announcements of the replicas of a namespace in Leases that
// are not stale. access is the API of their cluster.
func Announced(ctx context.Context, access *rest.Config, namespace string, now time.Time) ([]Announcement, error) {
	api, err := newAPI(access)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	return AnnouncedBy(ctx, api, namespace, now)
}

// Find finds the replicas that keep a Lease or, if none does, the pods of meshctl and
// istiod, sorted by name. It tries to reach each: a replica that it could not reach
// has Err. The caller must close each of them.
func Find(ctx context.Context, o Options) ([]*Replica, error) {
	api, err := newAPI(o.Access)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	announced, err := AnnouncedBy(ctx, api, o.Namespace, o.Now())
	if err != nil {
		return nil, err
	}
	if o.Tokens.Pod == nil {
		o.Tokens.Pod = sync.OnceValues(func() (string, error) { return Mint(ctx, o.Access, o.Namespace) })
	}
	var found []candidate
	for i := range announced {
		found = append(found, o.announced(&announced[i]))
	}
	if len(found) == 0 {
		pods, err := podsIn(ctx, api, o.Namespace)
		if err != nil {
			return nil, err
		}
		for _, p := range pods {
			if p.configCluster != "" {
				found = append(found, candidate{Replica: Replica{
					Name: p.name, Err: fmt.Errorf("it reads %s, which is another cluster; with the context of that cluster, %w", p.configCluster, ErrOtherCluster),
				}})
				continue
			}
			found = append(found, candidate{Replica{Name: p.name}, []*Replica{o.forward(p)}})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: namespace %s has no Lease with label %s and no running pod with label %s",
			ErrNone, o.Namespace, LeaseSelector, strings.Join(podSelectors(), " or "))
	}
	if len(found) > maxReplicas {
		return nil, fmt.Errorf("namespace %s has %d control planes, at most %d are asked; name them by address", o.Namespace, len(found), maxReplicas)
	}
	out := make([]*Replica, len(found))
	slots := make(chan struct{}, atOnce)
	var asked sync.WaitGroup
	for i, c := range found {
		asked.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out[i] = c.reach(ctx)
		})
	}
	asked.Wait()
	slices.SortStableFunc(out, func(a, b *Replica) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// candidate is a replica and the ways in which it may be reached.
type candidate struct {
	Replica
	ways []*Replica
}

func (o *Options) announced(a *Announcement) candidate {
	c := candidate{Replica: Replica{Name: a.Replica, Announced: a}}
	if namespace, name, ok := strings.Cut(a.Pod, "/"); ok {
		c.ways = append(c.ways, o.forward(pod{namespace: namespace, name: name, port: a.port()}))
	}
	for _, address := range a.Addresses {
		c.ways = append(c.ways, replicaAt(address, o.Tokens, o.Timeout))
	}
	return c
}

// forward returns the replica that is reached through the API server at a port of a pod.
func (o *Options) forward(p pod) *Replica {
	target := kube.PodPort{Access: o.Access, Namespace: p.namespace, Name: p.name, Port: p.port}
	return &Replica{
		Via: "port-forward to " + target.String(),
		// The host is for the status page, which answers callers on loopback.
		URL:    fmt.Sprintf("http://localhost:%d", p.port),
		Client: dial.HTTPClientVia(o.Timeout, target.DialContext),
		Token:  func(context.Context) (string, error) { return o.Tokens.Pod() },
	}
}

// reach returns the replica by the first way that works.
func (c *candidate) reach(ctx context.Context) *Replica {
	if c.Err != nil {
		return &c.Replica
	}
	var errs []error
	for _, r := range c.ways {
		r.Name, r.Announced = c.Name, c.Announced
		err := r.identify(ctx)
		if err == nil {
			return r
		}
		r.Close()
		errs = append(errs, fmt.Errorf("%s: %w", r.Via, err))
	}
	if c.Err = errors.Join(errs...); c.Err == nil {
		c.Err = errors.New("it names no address")
	}
	if c.Announced != nil && c.Announced.Pod == "" {
		c.Err = fmt.Errorf("it runs outside of the cluster, and not on this machine (%w); %w", c.Err, ErrOtherCluster)
	}
	return &c.Replica
}

// identify checks that the replica answers, as another process may have its address.
func (r *Replica) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	var is Identity
	switch err := r.Get(ctx, IdentityPath, nil, &is); {
	case errors.Is(err, ErrNotFound):
		return errors.New("what answers there is no control plane of meshctl")
	case err != nil:
		return err
	case r.Announced != nil && is.Replica != r.Announced.Replica:
		return fmt.Errorf("another replica, %.100q, answers there", is.Replica)
	}
	r.Identity = is
	return nil
}
