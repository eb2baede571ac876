package facts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// UnreachableNetwork is a network with endpoints and without a usable gateway. Proxies
// in other networks get none of its endpoints.
type UnreachableNetwork struct {
	Network mesh.NetworkID
	// Cause describes the faults of the network's gateways, or states that it has none.
	Cause string
}

func (u UnreachableNetwork) String() string {
	return fmt.Sprintf("network %s: proxies in other networks get none of its endpoints: %s", u.Network, u.Cause)
}

// maxFaults is the number of faults that the Cause of an UnreachableNetwork describes.
const maxFaults = 3

// gatewayFaults holds the faults of the gateways of a network.
type gatewayFaults struct {
	texts Set[string]
	// pending reports whether a host name is still being resolved.
	pending bool
}

// fault notes that a gateway of a network cannot be used.
func (f *foundGateways) fault(network mesh.NetworkID, gateway string, c mesh.ClusterID, reason string) {
	f.faultsOf(network).texts.Add(fmt.Sprintf("%s of cluster %s: %s", gateway, c, reason))
}

func (f *foundGateways) faultsOf(network mesh.NetworkID) *gatewayFaults {
	faults := f.faults[network]
	if faults == nil {
		faults = &gatewayFaults{texts: Set[string]{}}
		f.faults[network] = faults
	}
	return faults
}

// networksOf returns the known networks of endpoints, sorted.
func networksOf(byPort map[string][]snapshot.Endpoint) []mesh.NetworkID {
	var out []mesh.NetworkID
	for _, list := range byPort {
		for i := range list {
			if n := list[i].Network; n != "" && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return out
}

// findUnreachable finds the networks that other networks cannot reach.
func (t *Tables) findUnreachable(r *derive.Reads) []UnreachableNetwork {
	var out []UnreachableNetwork
	found := t.Found.Get(r)
	local, _ := t.Networks.Get(r, t.Cfg.Local)
	for n := range t.allUsed.Lookup(r, struct{}{}) {
		faults := cmp.Or(found.faults[n], &gatewayFaults{})
		switch {
		case len(found.usable[n]) > 0, faults.pending, !t.isCalledFromOthers(r, n):
			continue
		case len(faults.texts) == 0 && n == local:
			continue // other networks may have no need to call this one
		}
		out = append(out, UnreachableNetwork{n, faults.cause(n)})
	}
	return out
}

// isCalledFromOthers reports whether some cluster is in another network.
func (t *Tables) isCalledFromOthers(r *derive.Reads, n mesh.NetworkID) bool {
	for _, other := range t.allNetworks.Lookup(r, struct{}{}) {
		if other != "" && other != n {
			return true
		}
	}
	return false
}

// cause describes why network n has no usable gateway.
func (f *gatewayFaults) cause(n mesh.NetworkID) string {
	if len(f.texts) == 0 {
		return fmt.Sprintf("no gateway is known: label the Service of its east-west gateway %s=%s", mesh.LabelNetwork, n)
	}
	texts := slices.Sorted(maps.Keys(f.texts))
	text := strings.Join(texts[:min(len(texts), maxFaults)], "; ")
	if more := len(texts) - maxFaults; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}
