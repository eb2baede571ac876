package source

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// serviceExport is a ServiceExport of the multi-cluster services API (MCS). Only its name has
// an effect.
type serviceExport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              map[string]any `json:"spec,omitempty"`
	Status            map[string]any `json:"status,omitempty"`
}

// serviceImport is a ServiceImport of the multi-cluster services API.
type serviceImport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitzero"`
	Spec              struct {
		Type                  string           `json:"type"`
		IPs                   []string         `json:"ips,omitempty"`
		Ports                 []map[string]any `json:"ports,omitempty"`
		IPFamilies            []string         `json:"ipFamilies,omitempty"`
		SessionAffinity       string           `json:"sessionAffinity,omitempty"`
		SessionAffinityConfig map[string]any   `json:"sessionAffinityConfig,omitempty"`
		InternalTrafficPolicy string           `json:"internalTrafficPolicy,omitempty"`
		TrafficDistribution   string           `json:"trafficDistribution,omitempty"`
	} `json:"spec,omitzero"`
	Status map[string]any `json:"status,omitempty"`
}

var serviceExportKind = kubeKind(kind{
	group: groupMultiCluster, name: "ServiceExport", plural: "serviceexports", versions: []string{"v1alpha1", "v1beta1"},
	resources: []Resource{{Custom: true, Optional: true, Without: "the cluster exports no services to clusterset.local"}},
}, func(c *conversion, _ *serviceExport) *fields.Error {
	c.object = &snapshot.ServiceExport{Meta: c.meta}
	return nil
})

var serviceImportKind = kubeKind(kind{
	group: groupMultiCluster, name: "ServiceImport", plural: "serviceimports", versions: []string{"v1alpha1", "v1beta1"},
	resources: []Resource{{Custom: true, Optional: true, Without: "the cluster has no services of clusterset.local"}},
}, func(c *conversion, o *serviceImport) *fields.Error {
	vips, fault := c.addresses("spec.ips", o.Spec.IPs)
	if fault != nil {
		return fault
	}
	c.object = &snapshot.ServiceImport{Meta: c.meta, VIPs: vips}
	return nil
})
