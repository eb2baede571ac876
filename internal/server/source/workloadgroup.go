package source

import (
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// WorkloadGroups are checked here. Package autoregister reads a group when a machine joins with
// its name.
var workloadGroupKind = istioKind(kind{
	group: groupNetworking, name: "WorkloadGroup", plural: "workloadgroups", versions: istioVersions,
	support: fields.Partly, meaning: "machines that [join with its name](virtual-machines.md#automatic-registration-of-machines) get WorkloadEntries; only in a Kubernetes API",
	fields: []fields.Field{
		{Path: "metadata", Support: fields.Works},
		{Path: "template", Support: fields.Works, Meaning: "`address` has no effect, and is reported: an entry has the address of its machine"},
		{Path: "probe", Support: fields.Works},
	},
	resources: []Resource{{Use: ForConfiguration, Custom: true, Optional: true, Without: "machines that name a WorkloadGroup are not registered"}},
}, func(c *conversion, spec *networkingv1alpha3.WorkloadGroup) *fields.Error {
	template := spec.GetTemplate()
	if template.GetAddress() != "" && !c.Remote {
		c.warn(fields.WithoutEffect("spec.template.address", "a WorkloadEntry has the address of its machine"))
	}
	if account := template.GetServiceAccount(); account != "" && !mesh.IsDNSName(account) {
		return fields.Faultf("template.serviceAccount", "%q is not a DNS name", account)
	}
	return fields.LabelsFault("template.labels", template.GetLabels())
})
