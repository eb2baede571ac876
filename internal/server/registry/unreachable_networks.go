package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
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

// UnreachableNetworks returns the networks that other networks cannot reach, sorted by
// name. The caller must not change the result.
func (r *Registry) UnreachableNetworks() []UnreachableNetwork { return r.report.Load().unreachable }

// maxFaults is the number of faults that the Cause of an UnreachableNetwork describes.
const maxFaults = 3

// gatewayFaults holds the faults of the gateways of a network.
type gatewayFaults struct {
	texts set[string]
	// pending reports whether a host name is still being resolved.
	pending bool
}

// fault notes that a gateway of a network cannot be used.
func (b *builder) fault(network mesh.NetworkID, gateway string, c mesh.ClusterID, reason string) {
	f := b.faultsOf(network)
	f.texts.add(fmt.Sprintf("%s of cluster %s: %s", gateway, c, reason))
}

func (b *builder) faultsOf(network mesh.NetworkID) *gatewayFaults {
	f := b.faults[network]
	if f == nil {
		f = &gatewayFaults{texts: set[string]{}}
		b.faults[network] = f
	}
	return f
}

// endpointNetworks updates the networks counter for a service.
func (s *state) endpointNetworks(before, after []mesh.NetworkID) {
	for _, n := range before {
		if s.networks[n]--; s.networks[n] == 0 {
			delete(s.networks, n)
		}
	}
	for _, n := range after {
		s.networks[n]++
	}
}

// networksOf returns the known networks of endpoints, sorted.
func networksOf(e *snapshot.Endpoints) []mesh.NetworkID {
	var out []mesh.NetworkID
	for _, list := range e.ByPort {
		for i := range list {
			if n := list[i].Network; n != "" && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	slices.Sort(out)
	return out
}

// unreachableNetworks finds the networks that other networks cannot reach. It logs a
// network again only if the cause changes.
func (b *builder) unreachableNetworks() {
	var list []UnreachableNetwork
	for _, n := range slices.Sorted(maps.Keys(b.networks)) {
		faults := cmp.Or(b.faults[n], &gatewayFaults{})
		switch {
		case len(b.next.Gateways.ByNetwork[n]) > 0, faults.pending, !b.isCalledFromOthers(n):
			continue
		case len(faults.texts) == 0 && n == b.next.Mesh.Networks[b.cfg.Local]:
			continue // other networks may have no need to call this one
		}
		list = append(list, UnreachableNetwork{n, faults.cause(n)})
	}
	for _, u := range list {
		if !slices.Contains(b.report.unreachable, u) {
			b.cfg.Log.Warn("network has no usable gateway: proxies in other networks get none of its endpoints",
				"network", u.Network, "cause", u.Cause)
		}
	}
	for _, u := range b.report.unreachable {
		if len(b.next.Gateways.ByNetwork[u.Network]) > 0 {
			b.cfg.Log.Info("network has a usable gateway again", "network", u.Network)
		}
	}
	b.report.unreachable = list
}

// isCalledFromOthers reports whether some cluster is in another network.
func (b *builder) isCalledFromOthers(n mesh.NetworkID) bool {
	for _, other := range b.next.Mesh.Networks {
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
