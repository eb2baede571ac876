package facts

import (
	"cmp"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// SetBalancing sets the Balancing of a cluster and reports whether it changed.
func (t *Tables) SetBalancing(id mesh.ClusterID, b snapshot.Balancing) bool {
	if b == (snapshot.Balancing{}) {
		return t.balancing.Delete(id)
	}
	return t.balancing.Set(id, b)
}

// share is the part of a cluster's endpoints in load balancing.
type share struct {
	drained, demoted bool
	weight           uint32 // of each endpoint; 0 means 1
}

// defaultWeight is the weight of endpoints in percent in a cluster without a weight.
const defaultWeight = 100

// clusterShare returns the share of a cluster. Weights are divided by the greatest common
// divisor of the weights of all clusters.
func (t *Tables) clusterShare(r *derive.Reads, id mesh.ClusterID) (share, bool) {
	own, _ := t.balancing.Get(r, id)
	divisor := uint32(defaultWeight)
	for _, b := range t.allBalancing.Lookup(r, struct{}{}) {
		if b.Weight != 0 {
			divisor = gcd(divisor, b.Weight)
		}
	}
	out := share{drained: own.Drained, demoted: own.Demoted}
	if weight := cmp.Or(own.Weight, defaultWeight); weight != defaultWeight || divisor != defaultWeight {
		out.weight = weight / divisor
	}
	return out, true
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
