// Package units defines views and units of Envoy resources.
//
// Proxies share resources. A View is a list of resources for all proxies that need the
// same list, and consists of Units, which are generated one by one. The types of both
// hold everything that generation depends on, so that equal values mean equal resources.
// A view names its units by Keys, such as a service or a port; the caller lists them and
// finds the units that a change concerns.
package units

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
	// Keys describes the keys of the view's units.
	Keys() Keys
	// Unit returns the unit with a key, or nil if the view has none.
	Unit(s *snapshot.Snapshot, k Key) Unit
}

// Joined is a View with a single resource, which consists of the parts that its units
// generate. A change generates only the changed parts.
type Joined interface {
	View
	// Join returns the resource from the parts of all units.
	Join(e *xdswire.Encoder, pieces *xdswire.List) *xdswire.Resource
}

// Views holds the resources of one type for one proxy: the union of a view that many
// proxies share, a view of the private services that its namespace sees, and a view for
// its own workload. Each may be nil. They have no names in common.
type Views struct {
	Shared  View
	Private View
	Own     View
}

// NumViews is the number of views of a type.
const NumViews = 3

// List returns the views. Some may be nil.
func (v Views) List() [NumViews]View { return [NumViews]View{v.Shared, v.Private, v.Own} }

// Assignment holds the views of one proxy by type URL.
type Assignment map[string]Views
