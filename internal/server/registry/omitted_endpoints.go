package registry

import (
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Omitted are endpoints that clusters have for a service and that no proxy is given.
type Omitted struct {
	Number int
	// First are as many of them as are shown.
	First []OmittedEndpoint
}

// OmittedEndpoint is one of them.
type OmittedEndpoint struct {
	Cluster mesh.ClusterID `json:"cluster"`
	Address netip.Addr     `json:"address"`
	Reason  string         `json:"reason"`
}

// Why endpoints are left out.
const (
	OmittedTerminating = "its pod is terminating"
	OmittedNoPod       = "its pod is not known: the API server has not told of it yet, or the control plane may not read pods"
	OmittedTakesLocal  = "another cluster has it, and it is the address of a service of the own cluster"
)

// maxOmitted is how many endpoints of a service are shown that are left out.
const maxOmitted = 32

func (o *Omitted) add(c mesh.ClusterID, ep *snapshot.SliceEndpoint, reason string) {
	for _, addr := range ep.Addresses {
		o.addOne(OmittedEndpoint{c, addr, reason})
	}
}

func (o *Omitted) addOne(e OmittedEndpoint) {
	if o.Number++; len(o.First) < maxOmitted {
		o.First = append(o.First, e)
	}
}

func (o *Omitted) join(other Omitted) {
	o.Number += other.Number
	o.First = append(o.First, other.First[:min(len(other.First), maxOmitted-len(o.First))]...)
}

// With returns the omissions with further ones.
func (o Omitted) With(more []OmittedEndpoint) Omitted {
	o.First = slices.Clone(o.First)
	o.join(Omitted{len(more), more})
	return o
}

// omit notes what is left out of a service.
func (b *builder) omit(host string, o Omitted) {
	if o.Number > 0 {
		b.omitting[host] = &o
	} else if b.omitted.Get(host) != nil {
		b.omitting[host] = nil
	}
}

// Omitted are the endpoints of a service that no proxy is given. The result must not
// be changed.
func (r *Registry) Omitted(host string) Omitted {
	if o := r.omitted.Load().Get(host); o != nil {
		return *o
	}
	return Omitted{}
}
