package patch

import (
	"fmt"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Cluster applies the patches to a cluster. It reports whether the cluster remains.
func (p *patcher) Cluster(c *clusterv3.Cluster) bool {
	var merges []*snapshot.Patch
	for patch := range p.Of(networkingv1alpha3.EnvoyFilter_CLUSTER, anyOperation) {
		if !clusterMatches(patch.Spec.GetMatch().GetCluster(), c) {
			continue
		}
		if patch.Spec.GetPatch().GetOperation() == networkingv1alpha3.EnvoyFilter_Patch_REMOVE {
			return false
		}
		merges = append(merges, patch)
	}
	name := c.GetName()
	p.tryAll(merges, c, func(patch *snapshot.Patch) error {
		value, ok := patch.Value.(*clusterv3.Cluster)
		if ok && value.GetTransportSocket() != nil && len(c.GetTransportSocketMatches()) > 0 {
			return mergeSocket(patch, c, value)
		}
		return mergeValue(patch, c)
	})
	c.Name = name // other resources name it
	return true
}

// mergeSocket merges a patch with a transport socket into a cluster with several: into the
// first of the same name.
func mergeSocket(patch *snapshot.Patch, c, value *clusterv3.Cluster) error {
	socket := value.GetTransportSocket()
	i := slices.IndexFunc(c.GetTransportSocketMatches(), func(m *clusterv3.Cluster_TransportSocketMatch) bool {
		return m.GetTransportSocket().GetName() == socket.GetName()
	})
	if i < 0 {
		return fmt.Errorf("no transport socket of the cluster has the name %q", socket.GetName())
	}
	rest := proto.CloneOf(value)
	rest.TransportSocket = nil
	if err := mergeMessage(c.ProtoReflect(), rest.ProtoReflect(), replacesLists(patch)); err != nil {
		return err
	}
	return mergeMessage(c.GetTransportSocketMatches()[i].GetTransportSocket().ProtoReflect(), socket.ProtoReflect(), replacesLists(patch))
}

// clusterMatches reports whether a cluster has what a match, which may be nil, names.
func clusterMatches(m *networkingv1alpha3.EnvoyFilter_ClusterMatch, c *clusterv3.Cluster) bool {
	if m.GetName() != "" {
		return m.GetName() == c.GetName()
	}
	name, ok := mesh.ParseClusterName(c.GetName())
	if !ok {
		name, _ = mesh.ParseSNI(c.GetName())
	}
	return (m.GetSubset() == "" || m.GetSubset() == name.Subset) && (m.GetPortNumber() == 0 || m.GetPortNumber() == name.Port) &&
		(m.GetService() == "" || m.GetService() == name.Host || name.Direction == mesh.Inbound && hasService(c, m.GetService()))
}

// hasService reports whether the metadata of a cluster name the host of a service.
func hasService(c *clusterv3.Cluster, host string) bool {
	for _, v := range c.GetMetadata().GetFilterMetadata()["istio"].GetFields()["services"].GetListValue().GetValues() {
		if v.GetStructValue().GetFields()["host"].GetStringValue() == host {
			return true
		}
	}
	return false
}
