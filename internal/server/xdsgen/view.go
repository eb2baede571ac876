// Package xdsgen generates Envoy resources from facts. It is pure: the same facts give
// the same bytes, and no function waits or does I/O.
//
// Proxies share resources. A View is a list of resources for all proxies that need the
// same list, and consists of Units, which are generated one by one. The types of both
// hold everything that generation depends on, so that equal values mean equal resources.
package xdsgen

import (
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Unit is a part of a View that is generated as a whole, such as the clusters of one
// service or the listeners of one port. Its dynamic type is a comparable struct with
// everything that generation depends on: values, and pointers to immutable facts. Equal
// Units generate equal resources, so one result serves all views with the Unit.
type Unit interface {
	// Type returns the type URL of the resources.
	Type() string
	// Generate returns the resources. An error is a bug of the generator; the last
	// good resources then stay in place.
	Generate(*xdswire.Encoder) ([]*xdswire.Resource, error)
}

// View is a list of resources of one type. Its dynamic type is comparable. Proxies with
// equal Views share the list, its bytes and the differences between its versions.
type View interface {
	// Type returns the type URL of the resources.
	Type() string
	// Reads returns the kinds of facts on which the view's units depend. For changes of
	// other kinds Touched yields nothing.
	Reads() snapshot.Kinds
	// Units yields all units of the view, each under an id that is unique in the view.
	Units(s *snapshot.Snapshot, yield func(id string, u Unit))
	// Touched yields the units that the changes may have changed. A nil Unit means that
	// the view has no unit with that id. After changes with Everywhere, the caller uses
	// Units instead.
	Touched(s *snapshot.Snapshot, c *snapshot.Changes, yield func(id string, u Unit))
}

// Joined is a View with a single resource, which consists of the parts that its units
// generate. A change generates only the changed parts.
type Joined interface {
	View
	// Join returns the resource from the parts of all units, sorted by name.
	Join(e *xdswire.Encoder, pieces []*xdswire.Resource) *xdswire.Resource
}

// Views holds the resources of one type for one proxy: the union of a view that many
// proxies share and a view for its own workload. Either may be nil. They have no names
// in common.
type Views struct {
	Shared View
	Own    View
}

// Assignment holds the views of one proxy by type URL.
type Assignment map[string]Views

// constantView is embedded in views that depend only on their own fields. A proxy with
// other facts gets another view.
type constantView struct{}

// Reads implements View.
func (constantView) Reads() snapshot.Kinds { return 0 }

// Touched implements View.
func (constantView) Touched(*snapshot.Snapshot, *snapshot.Changes, func(string, Unit)) {}
