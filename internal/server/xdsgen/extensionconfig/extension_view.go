// Package extensionconfig generates the configurations of filters that proxies get by extension config
// discovery (ECDS).
package extensionconfig

import (
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// View is the view of the extension configurations (ECDS) of proxies with the
// same extensions.
type View struct {
	Extensions     wire.List[units.Extension]
	Authorizations wire.List[rbac.Authorization]
}

// Type implements units.View.
func (v View) Type() string { return xdswire.ExtensionType }

// Keys implements units.View.
func (v View) Keys() units.Keys {
	k := units.Keys{}
	if !v.Extensions.Empty() {
		k.Fixed = 1
	}
	for u := range v.authorizationUnits {
		k.Listed = append(k.Listed, units.Key{Name: u.Filter.Name})
	}
	return k
}

// Unit implements units.View.
func (v View) Unit(_ *snapshot.Snapshot, k units.Key) units.Unit {
	if k.Name == "" {
		return extensionUnit{v.Extensions}
	}
	for u := range v.authorizationUnits {
		if u.Filter.Name == k.Name {
			return u
		}
	}
	return nil
}

// Names returns the names of the extensions.
func (v View) Names() []string {
	var out []string
	for e := range v.Extensions.All {
		out = append(out, e.Name)
	}
	for u := range v.authorizationUnits {
		out = append(out, u.Filter.Name)
	}
	return out
}

func (v View) authorizationUnits(yield func(rbac.AuthorizationUnit) bool) {
	for a := range v.Authorizations.All {
		for _, f := range a.Filters() {
			if !yield(rbac.AuthorizationUnit{Of: a, Filter: f}) {
				return
			}
		}
	}
}

type extensionUnit struct{ extensions wire.List[units.Extension] }

func (u extensionUnit) Type() string { return xdswire.ExtensionType }

func (u extensionUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*xdswire.Resource
	for e := range u.extensions.All {
		out = append(out, enc.Raw(xdswire.ExtensionType, e.Name, []byte(e.Body)))
	}
	return out, nil
}
