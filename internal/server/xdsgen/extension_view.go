package xdsgen

import (
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// extensionView is the view of the extension configurations (ECDS) of proxies with the
// same extensions.
type extensionView struct {
	extensions     list[extension]
	authorizations list[authorization]
}

func (v extensionView) Type() string { return xdswire.ExtensionType }

func (v extensionView) Keys() Keys {
	k := Keys{}
	if !v.extensions.Empty() {
		k.Fixed = 1
	}
	for u := range v.authorizationUnits {
		k.Listed = append(k.Listed, Key{Name: u.filter.Name})
	}
	return k
}

func (v extensionView) Unit(_ *snapshot.Snapshot, k Key) Unit {
	if k.Name == "" {
		return extensionUnit{v.extensions}
	}
	for u := range v.authorizationUnits {
		if u.filter.Name == k.Name {
			return u
		}
	}
	return nil
}

// names returns the names of the extensions.
func (v extensionView) names() []string {
	var out []string
	for e := range v.extensions.All {
		out = append(out, e.name)
	}
	for u := range v.authorizationUnits {
		out = append(out, u.filter.Name)
	}
	return out
}

func (v extensionView) authorizationUnits(yield func(authorizationUnit) bool) {
	for a := range v.authorizations.All {
		for _, f := range a.filters() {
			if !yield(authorizationUnit{a, f}) {
				return
			}
		}
	}
}

type extensionUnit struct{ extensions list[extension] }

func (u extensionUnit) Type() string { return xdswire.ExtensionType }

func (u extensionUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*xdswire.Resource
	for e := range u.extensions.All {
		out = append(out, enc.Raw(xdswire.ExtensionType, e.name, []byte(e.body)))
	}
	return out, nil
}
