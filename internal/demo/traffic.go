package demo

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/identity"
)

// Client is one of the mesh's client pods, with its own Envoy.
type Client struct {
	// Cluster is the cluster of the pod.
	Cluster mesh.ClusterID

	pod  pod
	url  string
	http *http.Client // its proxy is the pod's Envoy
}

// Answer is a response of helloworld.
type Answer struct {
	Version string         // of helloworld: v1 or v2
	Cluster mesh.ClusterID // of the helloworld
	Peer    string         // SPIFFE id of the client that the server's Envoy saw; empty for none
}

// Get sends one request through the client's Envoy. Any response not from helloworld is an
// error.
func (c *Client) Get(ctx context.Context) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return Answer{}, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return Answer{}, fmt.Errorf("GET %s from %s: %w", c.url, c.Cluster, &statusError{resp.Status})
	}
	g, err := readGreeting(resp.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("GET %s from %s: %w", c.url, c.Cluster, err)
	}
	a := Answer{Version: g.Version, Cluster: mesh.ClusterID(g.Cluster)}
	if id, err := identity.ParseXFCC(g.ClientCert); err == nil {
		a.Peer = id.String()
	}
	return a, nil
}

// statusError is a response with another status than 200.
type statusError struct{ status string }

func (e *statusError) Error() string { return "status " + e.status }

// Admin returns the address of the admin interface of the client's Envoy.
func (c *Client) Admin() string { return c.pod.admin().String() }

// Tally counts equal answers and holds the errors of failed requests.
type Tally struct {
	Answers map[Answer]int
	Failed  []error
}

func (t *Tally) add(a Answer, err error) {
	switch {
	case err != nil:
		t.Failed = append(t.Failed, err)
	case t.Answers == nil:
		t.Answers = map[Answer]int{a: 1}
	default:
		t.Answers[a]++
	}
}

// Versions counts the answers by version.
func (t Tally) Versions() map[string]int {
	out := map[string]int{}
	for a, n := range t.Answers {
		out[a.Version] += n
	}
	return out
}

// concurrency is the number of concurrent requests of a client.
const concurrency = 4

// send sends n requests, a few at a time, and tallies the answers. sent counts the requests.
// It stops early only when ctx ends.
func (c *Client) send(ctx context.Context, n int, sent *atomic.Int64) Tally {
	var (
		mu    sync.Mutex
		tally Tally
		group errgroup.Group
	)
	group.SetLimit(concurrency)
	for range n {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			answer, err := c.Get(ctx)
			sent.Add(1)
			mu.Lock()
			defer mu.Unlock()
			tally.add(answer, err)
			return nil
		})
	}
	_ = group.Wait() // the functions return no error
	return tally
}
