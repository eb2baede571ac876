package source

import (
	"strconv"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// closedPeerAuthentication returns the valid parts of a PeerAuthentication that is not
// valid. An unknown mode is STRICT. The workload's mode is STRICT, too, if the number of a port with
// STRICT is not understood. Without a valid selector, STRICT is for all workloads of the
// namespace, and another mode for none.
func closedPeerAuthentication(c *conversion, spec yamldoc.Value) snapshot.Object {
	const mode = securityv1beta1.PeerAuthentication_MutualTLS_STRICT
	strictMode := &securityv1beta1.PeerAuthentication_MutualTLS{Mode: mode}
	var head securityv1beta1.PeerAuthentication
	understood(spec, head.ProtoReflect())
	out := &securityv1beta1.PeerAuthentication{Mtls: head.Mtls}
	if !exact[securityv1beta1.PeerAuthentication](spec, "mtls") || hasUnknown(spec, out) {
		out.Mtls = strictMode
	}
	selects := exact[securityv1beta1.PeerAuthentication](spec, "selector") && fields.LabelsFault("", head.GetSelector().GetMatchLabels()) == nil
	if selects {
		out.Selector = head.Selector
	}
	ports := either(spec, "portLevelMtls", "port_level_mtls")
	if !ports.IsMapping() && !ports.IsNull() {
		out.Mtls = strictMode
	}
	for key, of := range ports.Fields() {
		m := &securityv1beta1.PeerAuthentication_MutualTLS{}
		if of.IsNull() || fields.DecodeProto(of, m, fields.Strict) != nil {
			m = strictMode
		}
		number, err := strconv.ParseUint(key, 10, 32)
		switch {
		case err == nil && fields.IsPort(uint32(number)) && len(out.GetSelector().GetMatchLabels()) > 0:
			if out.PortLevelMtls == nil {
				out.PortLevelMtls = make(map[uint32]*securityv1beta1.PeerAuthentication_MutualTLS)
			}
			out.PortLevelMtls[uint32(number)] = m
		case m.Mode == mode:
			out.Mtls = strictMode
		}
	}
	if !selects && out.GetMtls().GetMode() != mode {
		return nil
	}
	return &snapshot.PeerAuthentication{Meta: c.meta, Kind: snapshot.KindPeerAuthentication, Spec: out}
}

// closedTokens returns the valid parts of a RequestAuthentication that is not valid. Rules
// that are not understood refuse all tokens that they find. Without a valid attachment, all
// rules do, for all workloads that the object could select.
func closedTokens(c *conversion, spec yamldoc.Value) snapshot.Object {
	var head securityv1beta1.RequestAuthentication
	understood(spec, head.ProtoReflect())
	out := &securityv1beta1.RequestAuthentication{}
	attaches := exact[securityv1beta1.RequestAuthentication](spec, "selector", "targetRef", "targetRefs") && selectionFault(&head) == nil
	if attaches {
		out.Selector, out.TargetRef, out.TargetRefs = head.Selector, closedTarget(head.TargetRef), closedTargets(head.TargetRefs)
	}
	all := !attaches || attachmentFault(&head) != nil || c.referenceFault(&head) != nil || hasUnknown(spec, out)
	rules := either(spec, "jwtRules", "jwt_rules")
	items, isList := rules.Items()
	if !isList && !rules.IsNull() || !spec.IsMapping() {
		items = []yamldoc.Value{rules} // a rule of which nothing is understood
	}
	for _, item := range items {
		r := &securityv1beta1.JWTRule{}
		if all || item.IsNull() || fields.DecodeProto(item, r, fields.Strict) != nil || tokenRuleFault("", r) != nil {
			r = refusingRule(item)
		}
		out.JwtRules = append(out.JwtRules, r)
	}
	return &snapshot.RequestAuthentication{Meta: c.meta, Kind: snapshot.KindRequestAuthentication, Spec: out}
}

// either returns the value of a field by one of its two names.
func either(v yamldoc.Value, name, other string) yamldoc.Value {
	if of := v.Get(name); !of.IsNull() {
		return of
	}
	return v.Get(other)
}

// refusingRule returns a rule that looks for tokens where another one does, as far as that is
// understood, and refuses them. Clients cannot forge the headers that the other one sets.
func refusingRule(of yamldoc.Value) *securityv1beta1.JWTRule {
	var r securityv1beta1.JWTRule
	understood(of, r.ProtoReflect())
	out := &securityv1beta1.JWTRule{Issuer: "nobody", Jwks: keyset.Nobodys}
	if isOutputHeader(r.OutputPayloadToHeader) {
		out.OutputPayloadToHeader = r.OutputPayloadToHeader
	}
	for _, h := range r.OutputClaimToHeaders {
		if list := append(out.OutputClaimToHeaders, h); claimHeadersFault("", list) == nil {
			out.OutputClaimToHeaders = list
		}
	}
	for _, h := range r.FromHeaders {
		if one := []*securityv1beta1.JWTHeader{h}; tokenPlacesFault("", &securityv1beta1.JWTRule{FromHeaders: one}) == nil {
			out.FromHeaders = append(out.FromHeaders, h)
		}
	}
	for _, name := range r.FromCookies {
		if fields.IsHeaderName(name) {
			out.FromCookies = append(out.FromCookies, name)
		}
	}
	for _, name := range r.FromParams {
		if textsFault("", []string{name}) == nil {
			out.FromParams = append(out.FromParams, name)
		}
	}
	return out
}
