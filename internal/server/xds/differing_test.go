package xds

import (
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/xdswire"
)

func TestDiffering(t *testing.T) {
	var e xdswire.Encoder
	r := func(name string) *xdswire.Resource { return e.Raw(xdswire.RouteType, name, nil) }
	a, b, c, d, newB := r("a"), r("b"), r("c"), r("d"), r("b")
	type list = []*xdswire.Resource
	for _, tt := range []struct{ before, now, gone, came list }{
		{nil, list{a}, nil, list{a}},
		{list{a}, nil, list{a}, nil},
		{list{a, b, c}, list{a, b, c}, nil, nil},
		{list{a, b, d}, list{a, newB, c, d}, list{b}, list{newB, c}},
		{list{a, b, c}, list{d}, list{a, b, c}, list{d}},
		{list{c}, list{a, b, d}, list{c}, list{a, b, d}},
	} {
		gone, came := differing(tt.before, tt.now)
		namesOf := func(l list) []string { return xdswire.NewList(l...).Names() }
		if !slices.Equal(gone, tt.gone) || !slices.Equal(came, tt.came) {
			t.Errorf("%s to %s: gone %s, came %s, want %s and %s", namesOf(tt.before), namesOf(tt.now), namesOf(gone), namesOf(came), namesOf(tt.gone), namesOf(tt.came))
		}
	}
}
