// Package kube reads the objects of one cluster from its Kubernetes API and follows
// their changes. It lists each resource in pages and then watches it, all resources at
// the same time. It converts each object as it arrives and keeps only its name, version
// and size. Errors never remove objects: after a failed list everything stays, and a
// faulty object is reported while its last good version stays in use.
//
// The API server is not trusted: every size and every wait is bounded, and one faulty
// object does not affect the others. docs/rationale.md compares this with client-go's
// Reflector.
//
// One goroutine per resource owns the state of the resource. Other goroutines may call
// Status.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// Source reads one cluster. Run it once.
type Source struct {
	// Cluster is the cluster of the objects, Config the access to its API. The rate
	// limits of Config are not used.
	Cluster mesh.ClusterID
	Config  *rest.Config
	// SystemNamespace holds the ConfigMap istio; default istio-system.
	SystemNamespace string
	// Revision selects the ConfigMap with the settings of the injector.
	Revision string
	// Configuration is set for the control plane's own cluster: its Istio objects and
	// its ConfigMap istio are read, too.
	Configuration bool
	// Analysis is set if the cluster is read for an analysis of the mesh: then the resources of
	// source.Analyzed are read, too, and the configuration even without Configuration.
	Analysis bool
	// IgnorePolicies is that of source.Converter.
	IgnorePolicies bool
	// Namespaces lists the namespaces whose services are read; nil means all.
	Namespaces []string
	// SecretNamespaces lists the namespaces whose Secrets are read for gateways and WasmPlugins, and
	// with Configuration the CA certificates in ConfigMaps; "*" means all.
	SecretNamespaces []string
	Limits           Limits
	// Log is the logger; default: nothing is logged.
	Log *slog.Logger
	// Count is called for each object that was added, changed or deleted, whether it is
	// used or not. May be nil.
	Count func(*source.Resource, source.Change)
	// Now is the clock; required.
	Now func() time.Time
	// Jitter returns a random number from 0 to 1, which spreads the requests of many
	// clients; default rand.Float64.
	Jitter func() float64

	waits     waits // tests shorten them
	followers atomic.Pointer[[]*follower]
	synced    atomic.Bool
	version   atomic.Pointer[string] // of the API server
}

// shared is the common state of the followers of one cluster.
type shared struct {
	*Source
	client      *client
	conv        *source.Converter
	sink        snapshot.Sink
	definitions *definitions
	objects     atomic.Int64
	bytes       atomic.Int64
	waiting     atomic.Int64 // followers that have not completed their first list
	started     time.Time

	mu      sync.Mutex
	failing map[string]int // number of followers by their error
	again   chan struct{}  // closed when a follower recovers
}

// Run reads the cluster, calls Synced when everything was read once, and follows it
// until ctx ends. Then it returns nil. It retries an unreachable cluster until then. It
// returns an error only if Config is invalid.
func (s *Source) Run(ctx context.Context, sink snapshot.Sink) error {
	client, err := newClient(s.Config)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", s.Cluster, err)
	}
	defer client.close()
	sh := s.share(client, sink)
	followers := sh.followers()
	sh.waiting.Store(int64(len(followers)))
	s.followers.Store(&followers)
	var done sync.WaitGroup
	for _, f := range followers {
		done.Go(func() { f.run(ctx) })
	}
	done.Go(func() { sh.followVersion(ctx) })
	done.Wait()
	return nil
}

func (s *Source) share(c *client, sink snapshot.Sink) *shared {
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	s.Log = s.Log.With("cluster", string(s.Cluster))
	if s.Count == nil {
		s.Count = func(*source.Resource, source.Change) {}
	}
	if s.Jitter == nil {
		s.Jitter = rand.Float64
	}
	s.Limits, s.waits = s.Limits.withDefaults(), s.waits.withDefaults()
	return &shared{
		Source: s, client: c, sink: sink, definitions: newDefinitions(), started: s.Now(), failing: make(map[string]int),
		again: make(chan struct{}),
		conv:  &source.Converter{Cluster: s.Cluster, SystemNamespace: s.SystemNamespace, Revision: s.Revision, RefuseLocal: true, Remote: !s.Configuration, IgnorePolicies: s.IgnorePolicies, Analysis: s.Analysis},
	}
}

// resources returns the resources to read. An analysis can do without the configuration of
// other clusters.
func (s *shared) resources() []source.Resource {
	out := source.Watched()
	if !s.Analysis {
		return out
	}
	if !s.Configuration {
		out = slices.DeleteFunc(out, func(r source.Resource) bool { return r.Unread })
		for i := range out {
			out[i].Optional = out[i].Optional || out[i].Use == source.ForConfiguration
		}
	}
	return append(out, source.Analyzed()...)
}

// followers returns a follower for each resource, or for each namespace of a resource
// that is read in some namespaces only.
func (s *shared) followers() []*follower {
	var out []*follower
	for _, r := range s.resources() {
		r = r.Of(s.Revision)
		switch {
		case (r.OwnOnly || r.Use == source.ForConfiguration) && !s.Configuration && !s.Analysis, r.OwnOnly && !s.Configuration:
		case r.Use == source.ForMesh && r.Namespaced() && s.Namespaces != nil:
			for _, namespace := range s.Namespaces {
				out = append(out, newFollower(s, r, namespace))
			}
		case r.Use != source.ForCredentials:
			namespace := ""
			if r.Object != "" {
				namespace = source.SystemNamespaceOf(s.SystemNamespace)
			}
			out = append(out, newFollower(s, r, namespace))
		case slices.Contains(s.SecretNamespaces, "*"):
			out = append(out, newFollower(s, r, ""))
		default:
			for _, namespace := range s.SecretNamespaces {
				out = append(out, newFollower(s, r, namespace))
			}
		}
	}
	return out
}

// readOnce is called once by each follower, when it has read everything.
func (s *shared) readOnce() {
	if s.waiting.Add(-1) > 0 {
		return
	}
	s.synced.Store(true)
	s.Log.Info("cluster read from its Kubernetes API", "objects", s.objects.Load(), "bytes", s.bytes.Load(),
		"problems", len(s.Status().Problems), "took", s.Now().Sub(s.started).Round(time.Millisecond))
	s.sink.Synced(s.Cluster)
}

// failed records that a resource cannot be followed. Each error is logged once for all
// resources. before is the previous error of the resource, empty for none.
func (s *shared) failed(resource, before, cause string) {
	s.mu.Lock()
	s.less(before)
	s.failing[cause]++
	first := s.failing[cause] == 1
	s.mu.Unlock()
	if first {
		s.Log.Warn("the Kubernetes API of the cluster is not followed: what was read stays in use", "resource", resource, "error", cause)
	}
}

// recovered records that a resource is followed again.
func (s *shared) recovered(cause string) {
	s.mu.Lock()
	last := s.less(cause)
	close(s.again)
	s.again = make(chan struct{})
	s.mu.Unlock()
	if last {
		s.Log.Info("the Kubernetes API of the cluster is followed again", "was", cause)
	}
}

// answers returns a channel that is closed when a resource is followed again, so that
// the others can end their backoff.
func (s *shared) answers() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.again
}

// less decrements the count of an error and reports whether it was the last one.
func (s *shared) less(cause string) bool {
	if s.failing[cause] == 0 {
		return false
	}
	if s.failing[cause]--; s.failing[cause] > 0 {
		return false
	}
	delete(s.failing, cause)
	return true
}
