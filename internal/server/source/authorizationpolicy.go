package source

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

var authorizationPolicyKind = closedKind(istioKind(kind{
	group: groupSecurity, name: "AuthorizationPolicy", plural: "authorizationpolicies", versions: []string{"v1", "v1beta1"},
	support: fields.Partly, meaning: "see [security-policy.md](security-policy.md#authorization)", fields: authorizationPolicyFields, doubts: emptyLists,
}, func(c *conversion, spec *securityv1beta1.AuthorizationPolicy) *fields.Error {
	p := &snapshot.AuthorizationPolicy{Meta: c.meta, Spec: spec}
	c.object = p
	var dryRun *fields.Error
	if text, ok := c.istio.Annotations[annotationDryRun]; ok {
		dry, err := strconv.ParseBool(text)
		if p.DryRun = dry; err != nil {
			dryRun = fields.Faultf("metadata.annotations["+annotationDryRun+"]", "%q is neither true nor false", text)
		}
	}
	return fields.AllFaults(dryRun, c.referenceFault(spec), checkAuthorizationPolicy(spec))
}), closedAuthorization)

// emptyLists finds the empty lists in the rules of an ALLOW policy. They permit everything, as absent
// lists do, though a template without values may have left them.
func emptyLists(spec yamldoc.Value) []*fields.Error {
	if action := spec.Get("action").Text(); action != "" && action != "ALLOW" {
		return nil
	}
	var out []*fields.Error
	rules, _ := spec.Get("rules").Items()
	for i, rule := range rules {
		out = append(out, emptyListsOf(fields.At("spec.rules", i), rule)...)
	}
	return out
}

func emptyListsOf(field string, of yamldoc.Value) []*fields.Error {
	var out []*fields.Error
	for _, key := range of.Keys() {
		value, field := of.Get(key), field+"."+key
		items, isList := value.Items()
		if value.IsNull() || isList && len(items) == 0 {
			w := fields.Faultf(field, "is an empty list, which permits everything, as if it were absent: remove it, or the rule")
			w.Kind = fields.EmptyList
			out = append(out, w)
		}
		if value.IsMapping() { // a source or an operation
			out = append(out, emptyListsOf(field, value)...)
		}
		for i, item := range items {
			out = append(out, emptyListsOf(fields.At(field, i), item)...)
		}
	}
	return out
}

// annotationDryRun makes a policy record its decisions only.
const annotationDryRun = "istio.io/dry-run"

func checkAuthorizationPolicy(p *securityv1beta1.AuthorizationPolicy) *fields.Error {
	return fields.AllFaults(
		attachmentFault(p),
		fields.Each("rules", p.Rules, func(field string, r *securityv1beta1.Rule) *fields.Error { return ruleFault(field, p.Action, r) }),
		policyActionFault(p),
	)
}

// policyActionFault checks what an action needs.
func policyActionFault(p *securityv1beta1.AuthorizationPolicy) *fields.Error {
	custom := p.Action == securityv1beta1.AuthorizationPolicy_CUSTOM
	switch {
	case len(p.Rules) == 0 && p.Action != securityv1beta1.AuthorizationPolicy_ALLOW:
		return fields.Faultf("rules", "is missing: action %s applies to nothing; to match everything, add an empty rule: rules: [{}]", p.Action)
	case custom && p.GetProvider().GetName() == "":
		return fields.Faultf("provider.name", "is missing: action CUSTOM needs one of extensionProviders in MeshConfig")
	case !custom && p.GetProvider() != nil:
		return fields.Faultf("provider", "needs action CUSTOM")
	}
	return nil
}

func ruleFault(field string, action securityv1beta1.AuthorizationPolicy_Action, r *securityv1beta1.Rule) *fields.Error {
	return fields.AllFaults(
		fields.Each(field+".from", r.From, func(field string, f *securityv1beta1.Rule_From) *fields.Error {
			return callerFault(field+".source", action, f.Source)
		}),
		fields.Each(field+".to", r.To, func(field string, t *securityv1beta1.Rule_To) *fields.Error {
			if isEmpty(t.Operation) {
				return fields.Faultf(field+".operation", "has no field")
			}
			return valuesFault(field+".operation", t.Operation)
		}),
		fields.Each(field+".when", r.When, func(field string, w *securityv1beta1.Condition) *fields.Error {
			return conditionFault(field, action, w)
		}),
	)
}

func callerFault(field string, action securityv1beta1.AuthorizationPolicy_Action, s *securityv1beta1.Source) *fields.Error {
	if isEmpty(s) {
		return fields.Faultf(field, "has no field")
	}
	faults := valuesFault(field, s)
	if len(s.ServiceAccounts)+len(s.NotServiceAccounts) > 0 && len(s.Principals)+len(s.NotPrincipals)+len(s.Namespaces)+len(s.NotNamespaces) > 0 {
		faults = faults.And(fields.Faultf(field+".serviceAccounts", "cannot be used with principals or namespaces"))
	}
	if action == securityv1beta1.AuthorizationPolicy_CUSTOM && len(s.RequestPrincipals)+len(s.NotRequestPrincipals) > 0 {
		faults = faults.And(fields.Faultf(field+".requestPrincipals", tokensTooLate))
	}
	return faults
}

// tokensTooLate states why CUSTOM policies cannot read tokens.
const tokensTooLate = "cannot be used with action CUSTOM, which comes before tokens are checked"

func isEmpty(m proto.Message) bool { return !m.ProtoReflect().IsValid() || proto.Size(m) == 0 }

func conditionFault(field string, action securityv1beta1.AuthorizationPolicy_Action, w *securityv1beta1.Condition) *fields.Error {
	check, err := conditionCheck(w.Key)
	switch {
	case err != nil:
		return fields.Faultf(field+".key", "%w", err)
	case len(w.Values)+len(w.NotValues) == 0:
		return fields.Faultf(field+".values", "is missing: give values or notValues")
	case action == securityv1beta1.AuthorizationPolicy_CUSTOM && isTokenKey(w.Key):
		return fields.Faultf(field+".key", "%q "+tokensTooLate, w.Key)
	case refusesByHeader(action, w) && strings.Count(w.Key, "-")+strings.Count(w.Key, "_") > snapshot.MostDashes:
		return fields.Faultf(field+".key", "%q has more than %d dashes: servers may take each for an underscore, and not all of these names can be refused", w.Key, snapshot.MostDashes)
	}
	return listsFault(field, w, func(string) valueCheck { return check })
}

// refusesByHeader reports whether a condition refuses requests by a header.
func refusesByHeader(action securityv1beta1.AuthorizationPolicy_Action, w *securityv1beta1.Condition) bool {
	refusing := w.Values
	if action == securityv1beta1.AuthorizationPolicy_ALLOW {
		refusing = w.NotValues
	}
	return strings.HasPrefix(w.Key, "request.headers[") && len(refusing) > 0
}

const policyTarget = "a Gateway of the Kubernetes Gateway API; other references are refused"

var authorizationPolicyFields = []fields.Field{
	{Path: "selector", Support: fields.Works},
	{Path: "targetRef", Support: fields.Partly, Meaning: policyTarget, Lacks: otherTarget},
	{Path: "targetRef.namespace", Support: fields.Works, Meaning: ownNamespace},
	{Path: "targetRefs", Support: fields.Partly, Meaning: policyTarget, Lacks: otherTarget},
	{Path: "targetRefs.namespace", Support: fields.Works, Meaning: ownNamespace},
	{Path: "rules", Support: fields.Works, Meaning: "all fields and [all attributes](security-policy.md#attributes)"},
	{Path: "action", Support: fields.Works, Meaning: "`AUDIT` marks requests only in metadata of Envoy, as in Istio"},
	{Path: "provider", Support: fields.Works, Meaning: "see [security-policy.md](security-policy.md#external-authorization)"},
}
