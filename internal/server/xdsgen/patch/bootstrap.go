package patch

import (
	"cmp"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// bootstrapPatch is the name of the only resource of its type, which has none on the wire.
const bootstrapPatch = ""

// BootstrapView is the view of the patches of EnvoyFilters for the bootstrap. Agents request
// it before they start Envoy, and merge it into the bootstrap that they make themselves.
type BootstrapView struct{ patches wire.List[*snapshot.Patch] }

// bootstrapViews returns the view of patches. If there are none, there is no view, and an agent
// gets an empty response.
func bootstrapViews(patches []*snapshot.Patch) units.Views {
	if len(patches) == 0 {
		return units.Views{}
	}
	return units.Views{Shared: BootstrapView{wire.ListOf(patches)}}
}

// Type implements units.View.
func (v BootstrapView) Type() string { return xdswire.BootstrapType }

// Keys implements units.View.
func (v BootstrapView) Keys() units.Keys { return units.Keys{Fixed: 1} }

// Unit implements units.View.
func (v BootstrapView) Unit(*snapshot.Snapshot, units.Key) units.Unit { return bootstrapUnit(v) }

type bootstrapUnit BootstrapView

func (u bootstrapUnit) Type() string { return xdswire.BootstrapType }

// Generate merges the patches. A patch whose result would be invalid has no effect.
func (u bootstrapUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	// An overload manager needs a monitor. The bootstrap of the agent has one, so that a patch
	// may lack it.
	merged := &bootstrapv3.Bootstrap{OverloadManager: &overloadv3.OverloadManager{
		ResourceMonitors: []*overloadv3.ResourceMonitor{{Name: "agent"}},
	}}
	p := patcher{resource: "the bootstrap"}
	for patch := range u.patches.All {
		p.try(patch, merged, func() error {
			if err := mergeMessage(merged.ProtoReflect(), patch.Value.ProtoReflect(), false); err != nil {
				return err
			}
			return repeatedName(merged)
		})
	}
	m := merged.GetOverloadManager()
	if m.ResourceMonitors = m.GetResourceMonitors()[1:]; proto.Size(m) == 0 {
		merged.OverloadManager = nil
	}
	g := wire.Generator{Enc: enc}
	g.Add(xdswire.BootstrapType, bootstrapPatch, merged)
	return withFaults(&g, p.faults)
}

// repeatedName returns an error if two parts have one name, because of which Envoy would not
// start.
func repeatedName(b *bootstrapv3.Bootstrap) error {
	return cmp.Or(
		checkNames("cluster", b.GetStaticResources().GetClusters()),
		checkNames("listener", b.GetStaticResources().GetListeners()),
		checkNames("runtime layer", b.GetLayeredRuntime().GetLayers()),
	)
}

// checkNames returns an error if two items of a kind have one name. Envoy gives names to listeners
// without one.
func checkNames[M interface{ GetName() string }](kind string, items []M) error {
	names := make(map[string]bool)
	for _, item := range items {
		name := item.GetName()
		if names[name] {
			return fmt.Errorf("an earlier patch has a %s %q", kind, name)
		}
		names[name] = name != ""
	}
	return nil
}
