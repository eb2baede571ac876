package xdswire

import (
	"fmt"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Names of the layers of the runtime in the bootstrap that the agent writes.
const (
	RuntimeLayer = "global config"
	AdminLayer   = "admin"
)

// CheckBootstrapPatch checks that a patch of the bootstrap leaves alone what the agent, and
// the configuration from the control plane, need. The error is about the field at path.
func CheckBootstrapPatch(patch proto.Message) (path string, err error) {
	b, ok := patch.(*bootstrapv3.Bootstrap)
	switch {
	case !ok:
		return "", fmt.Errorf("is no %s", (*bootstrapv3.Bootstrap)(nil).ProtoReflect().Descriptor().FullName())
	case b.GetNode() != nil:
		return "node", fmt.Errorf("belongs to the agent, which proves this identity: use ISTIO_META_… for metadata")
	case b.GetDynamicResources() != nil:
		return "dynamic_resources", fmt.Errorf("belongs to the agent, which connects Envoy to the control plane")
	case b.GetAdmin().GetAddress() != nil:
		return "admin.address", fmt.Errorf("belongs to the agent, which controls Envoy there: use proxyAdminPort of ProxyConfig")
	case b.GetStatsConfig().GetStatsMatcher().GetRejectAll():
		return "stats_config.stats_matcher.reject_all", fmt.Errorf("would hide the statistics with which the agent finds out whether Envoy is ready")
	}
	for i, c := range b.GetStaticResources().GetClusters() {
		if isOwn := slices.Contains([]string{mesh.AgentCluster, mesh.SDSCluster, mesh.XDSCluster}, c.GetName()); isOwn || mesh.IsGeneratedName(c.GetName()) {
			return fmt.Sprintf("static_resources.clusters[%d].name", i), takenName(c.GetName())
		}
	}
	for i, l := range b.GetStaticResources().GetListeners() {
		if mesh.IsGeneratedName(l.GetName()) {
			return fmt.Sprintf("static_resources.listeners[%d].name", i), takenName(l.GetName())
		}
	}
	for i, l := range b.GetLayeredRuntime().GetLayers() {
		if l.GetAdminLayer() != nil || slices.Contains([]string{RuntimeLayer, AdminLayer}, l.GetName()) {
			return fmt.Sprintf("layered_runtime.layers[%d]", i), fmt.Errorf("%q is a layer that the agent has already: use a static layer of another name", l.GetName())
		}
	}
	return "", nil
}

func takenName(name string) error {
	return fmt.Errorf("%q is a name of generated configuration", name)
}
