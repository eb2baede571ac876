package rbac

import (
	"strconv"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// RuleMaker makes Envoy's policies of the rules of an AuthorizationPolicy.
type RuleMaker struct {
	action    securityv1beta1.AuthorizationPolicy_Action
	network   bool // for TCP
	Proxyless bool // for gRPC without a proxy, which refuses rules about some headers
	rawPaths  bool // nobody has normalized paths
	domains   wire.List[string]
	namespace string // of the policy
}

// attribute is an attribute of requests and connections. Envoy finds some of them in
// permissions and the others in principals.
type attribute struct {
	http       bool // only requests of HTTP have it
	permission func(r *RuleMaker, args []string, value string, refuses bool) *rbacv3.Permission
	principal  func(r *RuleMaker, args []string, value string, refuses bool) *rbacv3.Principal
	// paths is set for the attribute whose values are paths.
	paths bool
}

// condition demands that an attribute has one of the values, and none of the others.
type condition struct {
	attribute
	args           []string
	values, others []string
}

// Policy returns the policy of a rule, or nil if it matches nothing.
func (r *RuleMaker) Policy(rule *securityv1beta1.Rule) *rbacv3.Policy {
	var common []condition
	for _, w := range rule.GetWhen() {
		name, args, err := snapshot.SplitAttribute(w.GetKey())
		if err != nil {
			return nil // the source has checked it
		}
		common = append(common, condition{attributeNamed(name), append(args, filterName(name)...), w.GetValues(), w.GetNotValues()})
	}
	out := &rbacv3.Policy{}
	tos, froms := operations(rule), sources(rule)
	// Conditions stand once beside all operations and all sources: a copy for each would be a product
	// of two lists.
	var ofRequest, ofClient []condition
	if len(tos) == 1 {
		tos[0] = append(tos[0], common...)
	} else {
		ofRequest = common
	}
	if len(froms) == 1 {
		froms[0] = append(froms[0], common...)
	} else {
		ofClient = common
	}
	for _, to := range tos {
		conditions, ok := r.counting(to)
		if !ok {
			return nil
		}
		out.Permissions = append(out.Permissions, r.permission(conditions))
	}
	for _, from := range froms {
		conditions, ok := r.counting(from)
		if !ok {
			return nil
		}
		out.Principals = append(out.Principals, r.principal(conditions))
	}
	ofRequest, ok := r.counting(ofRequest)
	if !ok {
		return nil
	}
	if p := r.permission(ofRequest); !p.GetAny() {
		some := &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: out.Permissions}}}
		out.Permissions = []*rbacv3.Permission{{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: []*rbacv3.Permission{some, p}}}}}
	}
	ofClient, ok = r.counting(ofClient)
	if !ok {
		return nil
	}
	if p := r.principal(ofClient); !p.GetAny() {
		out.Principals = []*rbacv3.Principal{allPrincipals(anyPrincipal(out.Principals...), p)}
	}
	return out
}

// operations returns the conditions of each operation. Without any, one operation has none.
func operations(rule *securityv1beta1.Rule) [][]condition {
	var out [][]condition
	for _, t := range rule.GetTo() {
		o := t.GetOperation()
		out = append(out, []condition{
			{hostAttribute, nil, o.GetHosts(), o.GetNotHosts()},
			{methodAttribute, nil, o.GetMethods(), o.GetNotMethods()},
			{pathAttribute, nil, o.GetPaths(), o.GetNotPaths()},
			{attributeNamed("destination.port"), nil, o.GetPorts(), o.GetNotPorts()},
		})
	}
	if out == nil {
		out = [][]condition{nil}
	}
	return out
}

// sources returns the conditions of each source. Without any, one source has none.
func sources(rule *securityv1beta1.Rule) [][]condition {
	var out [][]condition
	for _, f := range rule.GetFrom() {
		s := f.GetSource()
		out = append(out, []condition{
			{attributeNamed("source.ip"), nil, s.GetIpBlocks(), s.GetNotIpBlocks()},
			{attributeNamed("remote.ip"), nil, s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks()},
			{attributeNamed("source.namespace"), nil, s.GetNamespaces(), s.GetNotNamespaces()},
			{attributeNamed("source.serviceAccount"), nil, s.GetServiceAccounts(), s.GetNotServiceAccounts()},
			{attributeNamed("source.trustDomain"), nil, s.GetTrustDomains(), s.GetNotTrustDomains()},
			{attributeNamed("source.principal"), nil, s.GetPrincipals(), s.GetNotPrincipals()},
			{attributeNamed("request.auth.principal"), nil, s.GetRequestPrincipals(), s.GetNotRequestPrincipals()},
		})
	}
	if out == nil {
		out = [][]condition{nil}
	}
	return out
}

// counting returns the conditions that count. Connections of TCP have no attributes of HTTP, and
// gRPC checks no headers of its own protocol: a rule of an ALLOW policy with such a condition
// matches nothing, and any other rule matches without it. ok is false in the former case.
func (r *RuleMaker) counting(conditions []condition) (out []condition, ok bool) {
	for _, c := range conditions {
		switch {
		case len(c.values)+len(c.others) == 0:
		case (!c.http || !r.network) && (!r.Proxyless || !ofProtocol(c.args)):
			out = append(out, c)
		case r.action == securityv1beta1.AuthorizationPolicy_ALLOW:
			return nil, false
		}
	}
	return out, true
}

// ofProtocol reports whether a condition is about a header that gRPC refuses in rules.
func ofProtocol(args []string) bool {
	if len(args) == 0 {
		return false
	}
	name := strings.ToLower(args[0])
	return name == ":scheme" || strings.HasPrefix(name, "grpc-")
}

// refuses reports whether a match leads to a refusal. Where forms of a value are in doubt, it
// then matches all of them, else only the value itself.
func (r *RuleMaker) refuses(negated bool) bool {
	return (r.action == securityv1beta1.AuthorizationPolicy_ALLOW) == negated
}

// permission returns the permission with the conditions on the request.
func (r *RuleMaker) permission(conditions []condition) *rbacv3.Permission {
	var all []*rbacv3.Permission
	for i := range conditions {
		c := &conditions[i]
		if c.permission == nil {
			continue
		}
		if len(c.values) > 0 {
			all = append(all, r.anyPermission(c, c.values, false))
		}
		if len(c.others) > 0 {
			all = append(all, notPermission(r.anyPermission(c, c.others, true)))
		}
	}
	if len(all) == 0 {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}}
	}
	return &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: all}}}
}

func (r *RuleMaker) anyPermission(c *condition, values []string, negated bool) *rbacv3.Permission {
	refuses := r.refuses(negated)
	var some []*rbacv3.Permission
	for _, v := range values {
		some = append(some, c.permission(r, c.args, v, refuses))
	}
	if c.paths && refuses {
		some = append(some, doubtfulPath(r.rawPaths))
	}
	out := &rbacv3.Permission{Rule: &rbacv3.Permission_OrRules{OrRules: &rbacv3.Permission_Set{Rules: some}}}
	if c.paths && !refuses {
		out = &rbacv3.Permission{Rule: &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{
			Rules: []*rbacv3.Permission{out, notPermission(doubtfulPath(r.rawPaths))},
		}}}
	}
	return out
}

func notPermission(p *rbacv3.Permission) *rbacv3.Permission {
	return &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: p}}
}

// principal returns the principal with the conditions on the client.
func (r *RuleMaker) principal(conditions []condition) *rbacv3.Principal {
	var all []*rbacv3.Principal
	for i := range conditions {
		c := &conditions[i]
		if c.principal == nil {
			continue
		}
		if len(c.values) > 0 {
			all = append(all, r.anyPrincipal(c, c.values, false))
		}
		if len(c.others) > 0 {
			all = append(all, &rbacv3.Principal{Identifier: &rbacv3.Principal_NotId{NotId: r.anyPrincipal(c, c.others, true)}})
		}
	}
	if len(all) == 0 {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}}
	}
	return allPrincipals(all...)
}

func (r *RuleMaker) anyPrincipal(c *condition, values []string, negated bool) *rbacv3.Principal {
	var some []*rbacv3.Principal
	for _, v := range values {
		some = append(some, c.principal(r, c.args, v, r.refuses(negated)))
	}
	return anyPrincipal(some...)
}

func allPrincipals(ids ...*rbacv3.Principal) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_AndIds{AndIds: &rbacv3.Principal_Set{Ids: ids}}}
}

func anyPrincipal(ids ...*rbacv3.Principal) *rbacv3.Principal {
	return &rbacv3.Principal{Identifier: &rbacv3.Principal_OrIds{OrIds: &rbacv3.Principal_Set{Ids: ids}}}
}

// matchNothing returns a policy that matches nothing, for a policy without rules.
func matchNothing() *rbacv3.Policy {
	return &rbacv3.Policy{
		Permissions: []*rbacv3.Permission{notPermission(&rbacv3.Permission{Rule: &rbacv3.Permission_Any{Any: true}})},
		Principals: []*rbacv3.Principal{{Identifier: &rbacv3.Principal_NotId{
			NotId: &rbacv3.Principal{Identifier: &rbacv3.Principal_Any{Any: true}},
		}}},
	}
}

var (
	hostAttribute = attribute{http: true, permission: func(_ *RuleMaker, _ []string, value string, refuses bool) *rbacv3.Permission {
		return headerPermission(":authority", value, hostMatcher(value, refuses))
	}}
	methodAttribute = attribute{http: true, permission: func(_ *RuleMaker, _ []string, value string, refuses bool) *rbacv3.Permission {
		return headerPermission(":method", value, valueMatcher(value, refuses))
	}}
	pathAttribute = attribute{http: true, paths: true, permission: func(r *RuleMaker, _ []string, value string, refuses bool) *rbacv3.Permission {
		return pathPermission(pathMatcher(value, refuses, r.rawPaths))
	}}
)

// attributeNamed returns the attribute of a condition. The source has checked its name.
func attributeNamed(name string) attribute {
	if strings.HasPrefix(name, snapshot.FilterAttribute) {
		return attribute{permission: func(_ *RuleMaker, args []string, value string, _ bool) *rbacv3.Permission {
			return &rbacv3.Permission{Rule: &rbacv3.Permission_Metadata{Metadata: filterMetadata(args[1], args[0], value)}} //nolint:staticcheck // every Envoy reads it
		}}
	}
	return attributes[name]
}

// filterName returns the name of the filter whose metadata an attribute is.
func filterName(name string) []string {
	if filter, ok := strings.CutPrefix(name, "experimental."); ok {
		return []string{filter}
	}
	return nil
}

// attributes holds the other attributes of conditions by name.
var attributes = map[string]attribute{
	"destination.ip": {permission: func(_ *RuleMaker, _ []string, value string, _ bool) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationIp{DestinationIp: rangeOf(value)}}
	}},
	"destination.port": {permission: func(_ *RuleMaker, _ []string, value string, _ bool) *rbacv3.Permission {
		number, _ := strconv.ParseUint(value, 10, 16) // the source has checked it; Envoy has no port 0
		return &rbacv3.Permission{Rule: &rbacv3.Permission_DestinationPort{DestinationPort: uint32(number)}}
	}},
	"connection.sni": {permission: func(_ *RuleMaker, _ []string, value string, refuses bool) *rbacv3.Permission {
		return &rbacv3.Permission{Rule: &rbacv3.Permission_RequestedServerName{RequestedServerName: serverNameMatcher(value, refuses)}}
	}},
	"source.ip": {principal: func(_ *RuleMaker, _ []string, value string, _ bool) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_DirectRemoteIp{DirectRemoteIp: rangeOf(value)}}
	}},
	"remote.ip": {principal: func(_ *RuleMaker, _ []string, value string, _ bool) *rbacv3.Principal {
		return &rbacv3.Principal{Identifier: &rbacv3.Principal_RemoteIp{RemoteIp: rangeOf(value)}}
	}},
	"source.namespace": {principal: func(_ *RuleMaker, _ []string, value string, _ bool) *rbacv3.Principal {
		return authenticated(regexMatcher("spiffe://[^/]+/ns/" + segmentPattern(value) + "/sa/[^/]+"))
	}},
	"source.serviceAccount": {principal: func(r *RuleMaker, _ []string, value string, _ bool) *rbacv3.Principal {
		namespace, account, two := strings.Cut(value, "/")
		if !two {
			namespace, account = r.namespace, value
		}
		return authenticated(regexMatcher("spiffe://[^/]+/ns/" + quoted(namespace) + "/sa/" + quoted(account)))
	}},
	"source.trustDomain": {principal: func(_ *RuleMaker, _ []string, value string, _ bool) *rbacv3.Principal {
		return authenticated(regexMatcher("spiffe://" + segmentPattern(value) + "/.*"))
	}},
	"source.principal": {principal: func(r *RuleMaker, _ []string, value string, _ bool) *rbacv3.Principal {
		var some []*rbacv3.Principal
		for _, v := range r.inTrustDomains(value) {
			some = append(some, authenticated(prefixedMatcher("spiffe://", v, false)))
		}
		if len(some) == 1 {
			return some[0]
		}
		return anyPrincipal(some...)
	}},
	"request.headers": {http: true, principal: func(r *RuleMaker, args []string, value string, refuses bool) *rbacv3.Principal {
		var some []*rbacv3.Principal
		for _, name := range headerNames(args[0], refuses) {
			some = append(some, &rbacv3.Principal{Identifier: &rbacv3.Principal_Header{Header: headerMatcher(name, value, namedHeaderMatcher(name, value, refuses, r.rawPaths))}})
		}
		if len(some) == 1 {
			return some[0]
		}
		return anyPrincipal(some...)
	}},
	"request.auth.principal": {http: true, principal: func(_ *RuleMaker, _ []string, value string, _ bool) *rbacv3.Principal {
		return requestPrincipal(value)
	}},
	"request.auth.audiences": {http: true, principal: func(_ *RuleMaker, _ []string, value string, _ bool) *rbacv3.Principal {
		return claim(valueMatcher(value, false), "aud")
	}},
	"request.auth.presenter": {http: true, principal: func(_ *RuleMaker, _ []string, value string, _ bool) *rbacv3.Principal {
		return claim(valueMatcher(value, false), "azp")
	}},
	"request.auth.claims": {http: true, principal: func(_ *RuleMaker, args []string, value string, _ bool) *rbacv3.Principal {
		return claim(valueMatcher(value, false), args...)
	}},
}

// inTrustDomains returns a principal in all trust domains of the mesh, if it is in one of
// them, as Istio does: cluster.local stands for the own one.
func (r *RuleMaker) inTrustDomains(principal string) []string {
	parts := strings.Split(principal, "/")
	const form = 5 // <trust domain>/ns/<namespace>/sa/<account>
	if len(parts) != form || parts[0] == "*" {
		return []string{principal}
	}
	rest := strings.TrimPrefix(principal, parts[0])
	known := parts[0] == mesh.DefaultTrustDomain
	for d := range r.domains.All {
		known = known || matchesDomain(parts[0], d)
	}
	if !known {
		return []string{principal}
	}
	var out []string
	for d := range r.domains.All {
		v := d + rest
		if matchesDomain(parts[0], d) {
			v = principal
		}
		if len(out) == 0 || out[len(out)-1] != v {
			out = append(out, v)
		}
	}
	return out
}

// matchesDomain reports whether the trust domain of a principal, which may start with *, is a
// domain.
func matchesDomain(of, domain string) bool {
	if suffix, ok := strings.CutPrefix(of, "*"); ok {
		return strings.HasSuffix(domain, suffix)
	}
	return of == domain
}
