package source

import (
	"slices"
	"strconv"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// closedAuthorization returns the valid parts of an invalid policy, such that it
// permits at most as much as a valid version of it could: a rule of an ALLOW policy matches
// nothing if any part of it is not understood, a rule of another policy matches what its
// other parts do, and a policy with an unknown action refuses everything. A list with a value that
// is not understood demands nothing. Without a valid selector the policy applies to all workloads
// that it could select, and permits nothing.
func closedAuthorization(c *conversion, spec yamldoc.Value) snapshot.Object {
	annotation, annotated := c.istio.Annotations[annotationDryRun]
	dry, err := strconv.ParseBool(annotation)
	p := &snapshot.AuthorizationPolicy{Meta: c.meta, DryRun: err == nil && dry}
	var head securityv1beta1.AuthorizationPolicy
	understood(spec, head.ProtoReflect())
	p.Spec = &securityv1beta1.AuthorizationPolicy{Action: head.Action, ActionDetail: head.ActionDetail}
	attaches := exact[securityv1beta1.AuthorizationPolicy](spec, "selector", "targetRef", "targetRefs") && selectionFault(&head) == nil
	if attaches {
		p.Spec.Selector, p.Spec.TargetRef, p.Spec.TargetRefs = head.Selector, closedTarget(head.TargetRef), closedTargets(head.TargetRefs)
	}
	if !exact[securityv1beta1.AuthorizationPolicy](spec, "action") || slices.ContainsFunc(spec.Keys(), isMisspeltAction) {
		p.Spec.Action, p.Spec.ActionDetail = securityv1beta1.AuthorizationPolicy_DENY, nil
		p.Spec.Rules = []*securityv1beta1.Rule{{}}
		return p
	}
	items, isList := spec.Get("rules").Items()
	unknown := hasUnknown(spec, p.Spec)
	if !isList && !spec.Get("rules").IsNull() || unknown && len(items) == 0 {
		items = []yamldoc.Value{{}} // one rule of which nothing is understood
	}
	for i, item := range items {
		rule := &securityv1beta1.Rule{}
		if fields.DecodeProto(item, rule, fields.Strict) != nil || item.IsNull() || ruleFault("", p.Spec.Action, rule) != nil {
			rule = &securityv1beta1.Rule{}
			understood(item, rule.ProtoReflect())
			prune(rule, p.Spec.Action)
			p.Doubtful = append(p.Doubtful, i)
		}
		p.Spec.Rules = append(p.Spec.Rules, rule)
	}
	if unknown || !attaches || attachmentFault(&head) != nil || c.referenceFault(&head) != nil || annotated && err != nil { // which may limit what the policy permits
		p.Doubtful = nil
		for i := range p.Spec.Rules {
			p.Doubtful = append(p.Doubtful, i)
		}
	}
	return p
}

// isMisspeltAction reports whether an unknown field may be the action of a policy.
func isMisspeltAction(key string) bool {
	return key != "action" && output.NearestWord(key, []string{"action", "rules", "selector", "provider", "targetRef", "targetRefs"}) == "action"
}

// prune removes the conditions of a rule that are not valid. Of a list of excluded values it
// removes the values that are not valid, of another list all.
func prune(r *securityv1beta1.Rule, action securityv1beta1.AuthorizationPolicy_Action) {
	for _, f := range r.From {
		pruneValues(f.GetSource())
		if action == securityv1beta1.AuthorizationPolicy_CUSTOM && f.GetSource() != nil {
			f.Source.RequestPrincipals, f.Source.NotRequestPrincipals = nil, nil
		}
	}
	for _, t := range r.To {
		pruneValues(t.GetOperation())
	}
	var when []*securityv1beta1.Condition
	for _, w := range r.When {
		if check, err := conditionCheck(w.Key); err == nil {
			pruneLists(w, func(string) valueCheck { return check })
		}
		if conditionFault("", action, w) == nil {
			when = append(when, w)
		}
	}
	r.When = when
}
