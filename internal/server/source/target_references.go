package source

import (
	"strings"

	"google.golang.org/protobuf/proto"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// attached is the spec of a policy that names its workloads by labels or by references.
type attached interface {
	GetSelector() *typev1beta1.WorkloadSelector
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// attachmentFault checks the selector and the references of a policy.
func attachmentFault(spec attached) *fields.Error {
	return fields.AllFaults(selectionFault(spec), eachReference(spec, targetRefFault))
}

// selectionFault checks the selector of a policy, and that it has no references besides.
func selectionFault(spec attached) *fields.Error {
	faults := fields.LabelsFault("selector.matchLabels", spec.GetSelector().GetMatchLabels())
	if spec.GetSelector() != nil && (spec.GetTargetRef() != nil || len(spec.GetTargetRefs()) > 0) {
		faults = faults.And(fields.Faultf("selector", "cannot be used with targetRefs: use one of both"))
	}
	return faults
}

// eachReference checks each reference of a policy.
func eachReference(spec attached, check func(field string, r *typev1beta1.PolicyTargetReference) *fields.Error) *fields.Error {
	var one *fields.Error
	if r := spec.GetTargetRef(); r != nil {
		one = check("targetRef", r)
	}
	return fields.AllFaults(one, fields.Each("targetRefs", spec.GetTargetRefs(), check))
}

// targetRefFault checks that a reference names an object, as the API server does.
func targetRefFault(field string, r *typev1beta1.PolicyTargetReference) *fields.Error {
	var faults *fields.Error
	if group := r.GetGroup(); group != "" && !mesh.IsDNSName(group) {
		faults = fields.Faultf(field+".group", "%q is not the group of an API", group)
	}
	switch kind := r.GetKind(); {
	case kind == "":
		faults = faults.And(fields.Faultf(field+".kind", "is missing"))
	case !mesh.IsDNSLabel(strings.ToLower(kind)):
		faults = faults.And(fields.Faultf(field+".kind", "%q is not a kind", kind))
	}
	switch name := r.GetName(); {
	case name == "":
		faults = faults.And(fields.Faultf(field+".name", "is missing: a reference names one object"))
	case !mesh.IsDNSName(name):
		faults = faults.And(fields.Faultf(field+".name", "%q is not the name of an object", name))
	}
	return faults
}

// referenceFault checks that a security policy refers to Gateways of its namespace only. Other
// objects have no proxy that would enforce the policy.
func (c *conversion) referenceFault(spec attached) *fields.Error {
	return eachReference(spec, func(field string, r *typev1beta1.PolicyTargetReference) *fields.Error {
		var faults *fields.Error
		if otherTarget(r) && r.GetKind() != "" && !c.IgnorePolicies {
			faults = fields.Faultf(field, "refers to the %s %s: only waypoints, which meshctl does not have, enforce policies for it; use selector, or refer to a Gateway of %s", r.GetKind(), r.GetName(), groupGatewayAPI)
		}
		if other := r.GetNamespace(); other != "" && other != c.meta.Namespace {
			faults = faults.And(fields.Faultf(field+".namespace", "%q is not the namespace of the policy, %q: leave it empty, and put the policy where the Gateway is", other, c.meta.Namespace))
		}
		return faults
	})
}

// closedTargets returns the references of a security policy that is not fully understood.
func closedTargets(refs []*typev1beta1.PolicyTargetReference) []*typev1beta1.PolicyTargetReference {
	var out []*typev1beta1.PolicyTargetReference
	for _, r := range refs {
		if r == nil {
			r = &typev1beta1.PolicyTargetReference{}
		}
		out = append(out, closedTarget(r))
	}
	return out
}

// closedTarget returns a reference to all workloads of the namespace to which a reference may
// refer: a reference to an object of the Gateway API may refer only to Gateways.
func closedTarget(r *typev1beta1.PolicyTargetReference) *typev1beta1.PolicyTargetReference {
	switch {
	case r == nil, !otherTarget(r) && targetRefFault("", r) == nil:
		return r
	case r.GetGroup() == groupGatewayAPI:
		return &typev1beta1.PolicyTargetReference{Group: groupGatewayAPI, Kind: "Gateway", Name: snapshot.AnyTarget}
	}
	return &typev1beta1.PolicyTargetReference{Kind: snapshot.AnyTarget, Name: snapshot.AnyTarget}
}

// ownGateway explains why the namespace of a reference has no effect.
const ownGateway = "the Gateway is in the namespace of the policy"

// ownNamespace explains which namespaces a security policy may refer to.
const ownNamespace = "only the namespace of the policy; another one is refused"

// otherTarget reports whether a reference selects no proxy.
func otherTarget(m proto.Message) bool {
	r, ok := m.(*typev1beta1.PolicyTargetReference)
	return !ok || r.GetKind() != "Gateway" || r.GetGroup() != groupGatewayAPI
}
