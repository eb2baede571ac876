package proxy

import (
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// CollectorCluster returns the name of the cluster of a collector. Envoy refuses listeners
// that name an absent cluster, so ok is false if the proxy does not have it.
func CollectorCluster(s *snapshot.Snapshot, sc Scope, c snapshot.Collector) (name string, ok bool) {
	svc := s.Services.Get(c.Host())
	if svc == nil || !c.Is(svc) || !sc.Sees(svc) || svc.ExternalName != "" {
		return "", false
	}
	return mesh.ClusterName{Direction: mesh.Outbound, Port: c.Port, Host: svc.Host}.String(), true
}

// ProviderOf returns the extension provider of a collector.
func ProviderOf(c snapshot.Collector) *meshv1alpha1.MeshConfig_ExtensionProvider {
	var out meshv1alpha1.MeshConfig_ExtensionProvider
	if err := proto.Unmarshal([]byte(c.Spec), &out); err != nil {
		panic("xdsgen: " + err.Error()) // the registry encoded it
	}
	return &out
}
