package source

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

var namespaceKind = kubeKind(kind{
	name: "Namespace", plural: "namespaces", versions: v1, clusterWide: true,
	resources: []Resource{{Without: "the cluster's network is not known"}},
}, func(c *conversion, _ *corev1.Namespace) *FieldError {
	c.object = &snapshot.Namespace{Meta: c.meta}
	return nil
})

var nodeKind = kubeKind(kind{
	name: "Node", plural: "nodes", versions: v1, clusterWide: true,
	resources: []Resource{{Optional: true, Without: "endpoints have no localities"}},
}, func(c *conversion, o *corev1.Node) *FieldError {
	c.meta.Labels = nil // a cluster may have many nodes with many labels
	c.object = &snapshot.Node{Meta: c.meta, Locality: nodeLocality(o.Labels)}
	return nil
})

func nodeLocality(labels map[string]string) mesh.Locality {
	first := func(keys ...string) string {
		for _, k := range keys {
			if v := labels[k]; v != "" {
				return v
			}
		}
		return ""
	}
	return mesh.Locality{
		Region:  first(mesh.LabelRegion, corev1.LabelFailureDomainBetaRegion),
		Zone:    first(mesh.LabelZone, corev1.LabelFailureDomainBetaZone),
		Subzone: labels[mesh.LabelSubzone],
	}
}
