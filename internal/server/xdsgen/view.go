// Package xdsgen turns facts into Envoy resources. It is pure: the same facts
// give the same bytes, and nothing here waits, reads or writes. What a piece
// of configuration may read is the argument type of its generator, so what it
// depends on is complete by construction.
package xdsgen

import (
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Unit is a piece of a view that is generated as one: the clusters of one
// service, its assignments, the listeners of one port.
// Its dynamic type is a comparable struct that holds everything generation
// reads (values, and pointers to immutable facts), so two equal Units make
// equal resources, and one result serves all views that hold the Unit.
type Unit interface {
	// Type is the type URL of the resources.
	Type() string
	// Generate makes the resources; an error is a defect of the generator
	// and leaves the last good resources in place.
	Generate(*xdswire.Encoder) ([]*xdswire.Resource, error)
}

// View says what one list of resources of one type holds. Its dynamic type is
// comparable: proxies with equal Views share the list, its bytes and its
// differences.
type View interface {
	// Type is the type URL of the resources.
	Type() string
	// Reads is the kinds of changes that may touch the view's units. Touched
	// yields nothing for others.
	Reads() snapshot.Kinds
	// Units yields all units of the view under ids that are unique in it.
	Units(s *snapshot.Snapshot, yield func(id string, u Unit))
	// Touched yields the units that the changes may touch; a nil Unit means
	// that the view has no longer a unit of that id. It may yield units that
	// turn out equal to those before. Changes that are Everywhere are not
	// asked for here: such a view is listed anew.
	Touched(s *snapshot.Snapshot, c *snapshot.Changes, yield func(id string, u Unit))
}

// Joined is a View of one resource that is made of what its units give: a
// change costs the units that it touches, and copying the rest.
type Joined interface {
	View
	// Join makes the resource of the pieces of all units, sorted by name.
	Join(e *xdswire.Encoder, pieces []*xdswire.Resource) *xdswire.Resource
}

// Views is what one proxy is given of one type: the union of a view that it
// shares with many proxies and one made for its own workload. Either may be
// nil. Names do not overlap.
type Views struct {
	Shared View
	Own    View
}

// Assignment is what one proxy is given, by type URL.
type Assignment map[string]Views
