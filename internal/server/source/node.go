package source

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var namespaceKind = kubeKind(kind{
	name: "Namespace", plural: "namespaces", versions: v1, clusterWide: true,
	resources: []Resource{{Without: "the cluster's network is not known"}},
}, func(c *conversion, o *corev1.Namespace) *fields.Error {
	c.object = &snapshot.Namespace{Meta: c.meta, Distribution: c.distribution(nil, o.Annotations)}
	return nil
})

var nodeKind = kubeKind(kind{
	name: "Node", plural: "nodes", versions: v1, clusterWide: true,
	resources: []Resource{{Optional: true, Without: "endpoints have no localities"}},
}, func(c *conversion, o *corev1.Node) *fields.Error {
	external, fault := c.nodeAddresses(o.Status.Addresses)
	if fault != nil {
		return fault
	}
	if len(external) == 0 {
		c.meta.Labels = nil // a cluster may have many nodes with many labels
	}
	c.object = &snapshot.Node{Meta: c.meta, Locality: nodeLocality(o.Labels), External: external}
	return nil
})

// nodeAddresses returns the external IP addresses of a node.
func (c *conversion) nodeAddresses(list []corev1.NodeAddress) ([]netip.Addr, *fields.Error) {
	var out []netip.Addr
	for i, a := range list {
		if a.Type != corev1.NodeExternalIP {
			continue
		}
		field := fields.At("status.addresses", i) + ".address"
		ip, err := fields.ParseAddr(a.Address)
		if err != nil {
			return nil, &fields.Error{Field: field, Err: err}
		}
		if why := c.refused(ip); why != "" {
			c.warn(fields.Faultf(field, "%s %s: it is not used", ip, why))
			continue
		}
		out = append(out, ip)
	}
	return out, nil
}

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
