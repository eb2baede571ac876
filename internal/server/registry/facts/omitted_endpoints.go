package facts

import (
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Omitted holds the endpoints of a service in the objects of clusters that no proxy
// gets.
type Omitted struct {
	Number int
	First  []OmittedEndpoint // at most maxOmitted
}

// OmittedEndpoint is an endpoint that no proxy gets.
type OmittedEndpoint struct {
	Cluster mesh.ClusterID `json:"cluster"`
	Address netip.Addr     `json:"address"`
	Reason  string         `json:"reason"`
}

// The reasons of omitted endpoints.
const (
	OmittedTerminating = "its pod is terminating"
	OmittedNoPod       = "its pod is not known: the API server has not reported it yet, or the control plane may not read pods"
	OmittedTakesLocal  = "it is in a remote cluster and has the address of a service of the local cluster"
)

// MaxOmitted is the number of omitted endpoints of a service that are listed.
const MaxOmitted = 32

func (o *Omitted) add(c mesh.ClusterID, ep *snapshot.SliceEndpoint, reason string) {
	for _, addr := range ep.Addresses {
		o.addOne(OmittedEndpoint{c, addr, reason})
	}
}

func (o *Omitted) addOne(e OmittedEndpoint) {
	if o.Number++; len(o.First) < MaxOmitted {
		o.First = append(o.First, e)
	}
}

// With returns the list with further endpoints.
func (o Omitted) With(more []OmittedEndpoint) Omitted {
	o.First = slices.Clip(o.First)
	for _, e := range more {
		o.addOne(e)
	}
	return o
}

func (o Omitted) equal(other Omitted) bool {
	return o.Number == other.Number && slices.Equal(o.First, other.First)
}
