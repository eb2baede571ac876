package snapshot

import (
	"cmp"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Distribution is a preference for endpoints by their place.
type Distribution uint8

// The values of Distribution.
const (
	NoDistribution Distribution = iota
	AnyPlace                    // overrides the namespace's
	PreferSameZone
	PreferSameNode
)

// Of returns the preference of a service in a namespace with another one.
func (d Distribution) Of(namespace Distribution) Distribution {
	if d = cmp.Or(d, namespace); d == AnyPlace {
		return NoDistribution
	}
	return d
}

// Labels returns the labels that a client and an endpoint should share, the most important
// one first.
func (d Distribution) Labels() []string {
	all := []string{mesh.LabelNetwork, mesh.LabelRegion, mesh.LabelZone, mesh.LabelSubzone, mesh.LabelHostname}
	switch d {
	case PreferSameZone:
		return all[:3]
	case PreferSameNode:
		return all
	}
	return nil
}
