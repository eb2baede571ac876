package source

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/server/source/patches"
)

var envoyFilterKind = istioKind(kind{
	group: groupNetworking, name: "EnvoyFilter", plural: "envoyfilters", versions: []string{"v1alpha3"},
	support: fields.Partly, meaning: "see [its fields](#envoyfilter)", fields: envoyFilterFields,
}, (*conversion).envoyFilter)

// envoyFilter checks an EnvoyFilter and decodes the values of its patches. An invalid patch
// has no effect and gets a warning; the others work.
func (c *conversion) envoyFilter(spec *networkingv1alpha3.EnvoyFilter) *fields.Error {
	out := &snapshot.EnvoyFilter{Meta: c.meta, Selector: spec.GetWorkloadSelector().GetLabels(), Priority: spec.Priority}
	c.object = out
	if fault := fields.AllFaults(fields.LabelsFault("workloadSelector.labels", out.Selector), fields.Each("targetRefs", spec.TargetRefs, targetRefFault)); fault != nil {
		return fault
	}
	out.Gateways = c.targetGateways(spec.TargetRefs)
	targets, names, index := patches.Targets(), map[string]bool{}, -1
	return fields.Each("configPatches", spec.ConfigPatches, func(field string, p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) *fields.Error {
		index++
		fault := c.envoyPatch(out, p, index, targets, names)
		if fault != nil {
			w := fields.Under("spec", fields.Under(field, fields.Faultf(fault.Field, "%w: the patch has no effect", fault.Err)))
			w.Kind = fault.Kind
			c.warn(w)
			return nil
		}
		if proxy, _ := snapshot.NewProxyMatch(p.GetMatch().GetProxy().GetProxyVersion(), nil); proxy.OnlyOtherVersions() {
			c.warn(fields.Under("spec", fields.WithoutEffect(field+".match.proxy.proxyVersion", "a proxy of this mesh counts as one of Istio "+mesh.IstioVersion+", which the pattern does not match")))
		}
		return nil
	})
}

// targetGateways returns the names of the Gateways of the Kubernetes Gateway API that the
// references name; nil if there are no references.
func (c *conversion) targetGateways(refs []*typev1beta1.PolicyTargetReference) []string {
	if len(refs) == 0 {
		return nil
	}
	names := []string{}
	for i, r := range refs {
		if r.GetKind() != "Gateway" || r.GetGroup() != groupGatewayAPI {
			c.warn(fields.Under("spec", fields.WithoutEffect(fields.At("targetRefs", i), "only references to a Gateway of "+groupGatewayAPI+" select proxies")))
			continue
		}
		names = append(names, r.GetName())
	}
	return names
}

// envoyPatch checks a patch and adds it to the object. names holds the names of extensions.
func (c *conversion) envoyPatch(out *snapshot.EnvoyFilter, p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, index int, targets map[networkingv1alpha3.EnvoyFilter_ApplyTo]patches.Target, names map[string]bool) *fields.Error {
	target, operation := targets[p.GetApplyTo()], p.GetPatch().GetOperation()
	switch {
	case target.Message == "":
		return fields.Faultf("applyTo", "%s is no place for a patch", p.GetApplyTo())
	case !slices.Contains(strings.Fields(target.Operations), operation.String()):
		use := strings.ReplaceAll(target.Operations, " ", ", ")
		if use != target.Operations {
			use = "one of " + use
		}
		fault := fields.Faultf("patch.operation", "%s is not possible for %s: use %s", operation, p.GetApplyTo(), use)
		fault.Kind = wrongOperation(operation)
		return fault
	}
	proxy, fault := patches.Match(p, target)
	if fault != nil {
		return fault
	}
	spec := proto.CloneOf(p)
	spec.Patch.Value = nil
	patch := &snapshot.Patch{Of: out.Key(), Index: index, Spec: spec, Proxy: proxy}
	if operation != networkingv1alpha3.EnvoyFilter_Patch_REMOVE {
		if patch.Value, fault = patches.Value(p, target.Message); fault != nil {
			return fault
		}
	}
	if p.GetApplyTo() != networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG {
		out.Patches = append(out.Patches, patch)
		return nil
	}
	e := snapshot.Extension{Name: patches.TextField(patch.Value, "name"), Proxy: proxy}
	if names[e.Name] {
		return fields.Faultf("patch.value.name", "%q is given twice", e.Name)
	}
	body, fault := patches.Packed(patch.Value)
	if e.Body = string(body); fault == nil {
		names[e.Name] = true
		out.Extensions = append(out.Extensions, e)
	}
	return fault
}

// wrongOperation returns the kind of a fault in an operation.
func wrongOperation(operation networkingv1alpha3.EnvoyFilter_Patch_Operation) fields.ProblemKind {
	switch operation {
	case networkingv1alpha3.EnvoyFilter_Patch_REPLACE:
		return fields.WrongReplace
	case networkingv1alpha3.EnvoyFilter_Patch_ADD:
		return fields.WrongAdd
	case networkingv1alpha3.EnvoyFilter_Patch_REMOVE:
		return fields.WrongRemove
	}
	return fields.Unused
}

const noSuchPatch = "see [envoyfilter.md](envoyfilter.md)"

var envoyFilterFields = []fields.Field{
	{Path: "workloadSelector", Support: fields.Works},
	{Path: "targetRefs", Support: fields.Partly, Meaning: "references to a Gateway of the Kubernetes Gateway API"},
	{Path: "targetRefs.kind", Support: fields.Works},
	{Path: "targetRefs.group", Support: fields.Works},
	{Path: "targetRefs.name", Support: fields.Works},
	{Path: "targetRefs.namespace", Support: fields.NoEffect, Meaning: "the Gateway is in the namespace of the proxy"},
	{Path: "priority", Support: fields.Works},
	{Path: "configPatches", Support: fields.Partly, Meaning: noSuchPatch + "; waypoints and a match by `portName` of a listener are reported. `BOOTSTRAP` applies only if the agent has `BOOTSTRAP_XDS_AGENT=true`, see [the bootstrap](envoyfilter.md#the-bootstrap)"},
	{Path: "configPatches.applyTo", Support: fields.Works},
	{Path: "configPatches.match", Support: fields.Works},
	{Path: "configPatches.patch", Support: fields.Partly, Meaning: "all but `filterClass`"},
	{Path: "configPatches.patch.operation", Support: fields.Works},
	{Path: "configPatches.patch.value", Support: fields.Works},
	{Path: "configPatches.patch.filterClass", Support: fields.NoEffect, Meaning: "the operation decides the place of a filter"},
}
