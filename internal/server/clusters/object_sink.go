package clusters

import (
	"sync"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// feed is the sink of a reader. It holds the objects of a source back until they are
// complete; open then replaces the cluster's objects in the registry in one step. After
// that, events pass through.
type feed struct {
	cluster  mesh.ClusterID
	registry Registry
	// settings gets the settings of clusters, which are not for the registry; nil for
	// remote clusters.
	settings func(*snapshot.ClusterSettings)
	// notify is called after Synced.
	notify func()

	mu     sync.Mutex
	state  feedState
	synced bool
	held   map[snapshot.Key]snapshot.Event
}

type feedState uint8

const (
	feedHolds feedState = iota
	feedPasses
	feedClosed
)

// hold starts to hold objects back.
func (f *feed) hold() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != feedClosed {
		f.state, f.synced, f.held = feedHolds, false, make(map[snapshot.Key]snapshot.Event)
	}
}

// Apply implements snapshot.Sink.
func (f *feed) Apply(events []snapshot.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == feedClosed {
		return
	}
	events = f.takeSettings(events)
	switch f.state {
	case feedHolds:
		for _, e := range events {
			f.held[e.Key] = e
		}
	case feedPasses:
		f.registry.Apply(events)
	case feedClosed:
	}
}

// takeSettings passes settings on and returns the other events.
func (f *feed) takeSettings(events []snapshot.Event) []snapshot.Event {
	var rest []snapshot.Event
	for i, e := range events {
		if e.Key.Kind != snapshot.KindClusterSettings {
			if rest != nil {
				rest = append(rest, e)
			}
			continue
		}
		if rest == nil {
			rest = append(make([]snapshot.Event, 0, len(events)), events[:i]...)
		}
		if f.settings != nil {
			settings, _ := e.Object.(*snapshot.ClusterSettings)
			f.settings(settings)
		}
	}
	if rest == nil {
		return events
	}
	return rest
}

// Synced implements snapshot.Sink.
func (f *feed) Synced(mesh.ClusterID) {
	f.mu.Lock()
	f.synced = true
	f.mu.Unlock()
	f.notify()
}

// complete reports whether all objects were read and open is due.
func (f *feed) complete() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.synced && f.state == feedHolds
}

// open replaces the cluster's objects in the registry by the complete objects. It
// reports whether it did.
func (f *feed) open() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.synced || f.state != feedHolds {
		return false
	}
	events := make([]snapshot.Event, 0, len(f.held))
	for _, e := range f.held {
		if e.Object != nil {
			events = append(events, e)
		}
	}
	f.registry.Replace(f.cluster, events)
	f.state, f.held = feedPasses, nil
	return true
}

// close drops all further events.
func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.held = feedClosed, nil
}
