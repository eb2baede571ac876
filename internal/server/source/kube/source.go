// Package kube reads the objects of one cluster from its Kubernetes API and
// follows their changes. Each resource is listed in pages and then watched, all
// of them at once. An object is converted when it is read and then forgotten:
// only its name, version and size are kept. What the API does not say stays as
// it was: a list that fails takes nothing away, and an object that cannot be
// used is reported while its last good version stays.
//
// One goroutine for each resource owns what is known of it; Status alone is for
// others.
package kube

import (
	"cmp"
	"context"
	"errors"
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

// Limits bound what one cluster may make the control plane read and hold. The
// zero value is the defaults.
type Limits struct {
	// Objects is how many objects are held; default 300,000.
	Objects int64
	// Bytes is how much of them is held, as they are encoded without what is not
	// used; default 256 MiB.
	Bytes int64
	// Object is the size of one object as it is sent, in bytes; default 4 MiB,
	// which is more than an API server stores.
	Object int
	// List is the size of one list as it is sent, in bytes; default 4 GiB.
	List int64
}

func (l Limits) withDefaults() Limits {
	l.Objects = cmp.Or(l.Objects, 300_000)
	l.Bytes = cmp.Or(l.Bytes, 256<<20)
	l.Object = cmp.Or(l.Object, 4<<20)
	l.List = cmp.Or(l.List, 4<<30)
	return l
}

// Source reads one cluster. Run it once.
type Source struct {
	// Cluster is the cluster that the objects belong to, Config how its API is
	// reached; the limits on requests that Config may have are not used.
	Cluster mesh.ClusterID
	Config  *rest.Config
	// SystemNamespace holds the ConfigMap istio; default istio-system.
	SystemNamespace string
	// Configuration says that the cluster's Istio objects and its ConfigMap istio
	// are read, too: those of the own cluster count.
	Configuration bool
	// Namespaces are those whose services are read; nil is every one.
	Namespaces []string
	// SecretNamespaces are those whose Secrets are read, for gateways, and with
	// Configuration the CA certificates in their ConfigMaps; "*" is every one.
	SecretNamespaces []string
	Limits           Limits
	// Log takes what a person should know; default: nothing is logged.
	Log *slog.Logger
	// Count is told of each object that was added, changed or deleted, whether it is
	// used or not. May be nil.
	Count func(*source.Resource, source.Change)
	// Now is the clock; required.
	Now func() time.Time
	// Jitter spreads what many would do at one time: a random number from 0 to 1;
	// default rand.Float64.
	Jitter func() float64

	waits     waits // tests shorten them
	followers atomic.Pointer[[]*follower]
	synced    atomic.Bool
	version   atomic.Pointer[string] // of the API server
}

// shared is what the followers of one cluster have in common.
type shared struct {
	*Source
	client      *client
	conv        *source.Converter
	sink        snapshot.Sink
	definitions *definitions
	objects     atomic.Int64
	bytes       atomic.Int64
	waiting     atomic.Int64 // followers that have not read everything once
	started     time.Time

	mu      sync.Mutex
	failing map[string]int // followers by what is wrong with them
	again   chan struct{}  // closed when a resource is followed again
}

// Run reads the cluster, says Synced when all of it was read once, and follows
// it until ctx ends, when it returns nil. A cluster that cannot be reached is
// tried again for as long. The error is that Config cannot be used.
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
		conv:  &source.Converter{Cluster: s.Cluster, SystemNamespace: s.SystemNamespace, RefuseLocal: true, Remote: !s.Configuration},
	}
}

// followers are one for each resource that is read, and for what is read of
// some namespaces only, one for each of them.
func (s *shared) followers() []*follower {
	var out []*follower
	for _, r := range source.Watched() {
		switch {
		case (r.OwnOnly || r.Use == source.ForConfiguration) && !s.Configuration:
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

// readOnce is told of each follower once, when it has read everything.
func (s *shared) readOnce() {
	if s.waiting.Add(-1) > 0 {
		return
	}
	s.synced.Store(true)
	s.Log.Info("cluster read from its Kubernetes API", "objects", s.objects.Load(), "bytes", s.bytes.Load(),
		"problems", len(s.Status().Problems), "took", s.Now().Sub(s.started).Round(time.Millisecond))
	s.sink.Synced(s.Cluster)
}

// errLimit says that the cluster has more than may be held.
var errLimit = errors.New("is more than is read")

// hold accounts for what is held of objects, of which there are that many more
// and that many bytes more.
func (s *shared) hold(objects, bytes int64) error {
	o, b := s.objects.Add(objects), s.bytes.Add(bytes)
	var err error
	switch {
	case objects > 0 && o > s.Limits.Objects:
		err = fmt.Errorf("the cluster has more than %d objects, which %w", s.Limits.Objects, errLimit)
	case bytes > 0 && b > s.Limits.Bytes:
		err = fmt.Errorf("the objects of the cluster have more than %d bytes, which %w", s.Limits.Bytes, errLimit)
	default:
		return nil
	}
	s.objects.Add(-objects)
	s.bytes.Add(-bytes)
	return err
}

// failed notes that a resource cannot be followed, and logs each cause once for
// all resources. before is what was wrong with it until now, empty for nothing.
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

// recovered is told when a resource is followed again.
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

// answers is closed when a resource is followed again, so that all others need
// not wait for the end of their pauses.
func (s *shared) answers() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.again
}

// less counts a resource out and reports whether it was the last of its cause.
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
