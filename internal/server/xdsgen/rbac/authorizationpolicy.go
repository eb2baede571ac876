// Package rbac generates the filters of AuthorizationPolicies and RequestAuthentications.
package rbac

import (
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Authorization is a set of AuthorizationPolicies with one action that apply to a workload,
// and for the action CUSTOM one provider. Each has a filter for HTTP and one for TCP, whose
// configuration comes by ECDS. It is comparable, so workloads with the same policies share
// the configuration.
type Authorization struct {
	Action   securityv1beta1.AuthorizationPolicy_Action
	Policies wire.List[*snapshot.AuthorizationPolicy]
	domains  wire.List[string] // trustDomains
	rawPaths bool              // Envoy does not normalize paths
	// provider is for the action CUSTOM. Without cluster, both filters refuse what the policies match.
	provider snapshot.Collector
	name     string // of the provider
	Cluster  string
}

// ChooseAuthorizations returns the sets of policies of a workload, in the order of their
// filters. Of the node it reads the namespace and the policies that stay. The scope has the
// services that the proxy sees.
//
// A workload with policies has the filters of DENY, of ALLOW and of all providers, even those
// without policies, so that listeners stay as they are when a policy changes its action. Else
// connections of a draining listener would lack the filter of the new action.
func ChooseAuthorizations(s *snapshot.Snapshot, n proxy.Node, labels map[string]string, sc proxy.Scope) []Authorization {
	byAction := make(map[securityv1beta1.AuthorizationPolicy_Action][]*snapshot.AuthorizationPolicy)
	byProvider := make(map[string][]*snapshot.AuthorizationPolicy)
	add := func(p *snapshot.AuthorizationPolicy) {
		if action := p.Spec.GetAction(); action == securityv1beta1.AuthorizationPolicy_CUSTOM {
			name := p.Spec.GetProvider().GetName()
			byProvider[name] = append(byProvider[name], p)
		} else {
			byAction[action] = append(byAction[action], p)
		}
	}
	addAll := func(from string) {
		for p := range snapshot.AuthorizationPolicies(s.Namespaces.Get(from)) {
			if proxy.IsAttached(p.Namespace, p.Spec, n.Namespace, labels) {
				add(p)
			}
		}
	}
	addAll(s.Mesh.RootNamespace)
	if n.Namespace != s.Mesh.RootNamespace {
		addAll(n.Namespace)
	}
	for _, p := range n.Moving {
		add(p)
	}
	if len(byAction)+len(byProvider) == 0 {
		return nil
	}
	for name := range s.Mesh.Authorizers {
		if _, used := byProvider[name]; !used {
			byProvider[name] = nil
		}
	}
	domains, raw := wire.ListOf(proxy.TrustDomains(s.Mesh)), s.Mesh.Listeners.Paths == snapshot.KeepPaths
	var out []Authorization
	for _, name := range slices.Sorted(maps.Keys(byProvider)) {
		a := Authorization{
			Action: securityv1beta1.AuthorizationPolicy_CUSTOM, Policies: wire.ListOf(byProvider[name]), domains: domains, rawPaths: raw,
			provider: s.Mesh.Authorizers[name], name: name,
		}
		a.Cluster, _ = proxy.CollectorCluster(s, sc, a.provider)
		out = append(out, a)
	}
	for _, action := range []securityv1beta1.AuthorizationPolicy_Action{
		securityv1beta1.AuthorizationPolicy_AUDIT, securityv1beta1.AuthorizationPolicy_DENY, securityv1beta1.AuthorizationPolicy_ALLOW,
	} {
		policies := byAction[action]
		if len(policies) == 0 && action == securityv1beta1.AuthorizationPolicy_AUDIT {
			continue // refuses nothing
		}
		out = append(out, Authorization{Action: action, Policies: wire.ListOf(policies), domains: domains, rawPaths: raw})
	}
	return out
}

// The names of the filters, before a dot and the action.
const (
	FilterHTTPRBAC     = "envoy.filters.http.rbac"
	FilterNetworkRBAC  = "envoy.filters.network.rbac"
	filterHTTPAuthz    = "envoy.filters.http.ext_authz"
	filterNetworkAuthz = "envoy.filters.network.ext_authz"
)

// AuthorizationFilter describes a filter of an authorization.
type AuthorizationFilter struct {
	Name    string
	Network bool // not HTTP
	Early   bool // before the filters that check tokens
	Calls   bool // calls a provider
}

// Filters returns the filters of an authorization in their order.
func (a *Authorization) Filters() []AuthorizationFilter {
	var out []AuthorizationFilter
	for _, network := range []bool{false, true} {
		f := AuthorizationFilter{Network: network, Early: a.Action == securityv1beta1.AuthorizationPolicy_CUSTOM}
		rules, calls := FilterHTTPRBAC, filterHTTPAuthz
		if network {
			rules, calls = FilterNetworkRBAC, filterNetworkAuthz
		}
		f.Name = rules + "." + strings.ToLower(a.Action.String())
		if !f.Early {
			out = append(out, f)
			continue
		}
		f.Name += "." + a.name
		out = append(out, f)
		f.Name, f.Calls = calls+"."+a.name, true
		out = append(out, f)
	}
	return out
}

// AuthorizationFilters returns the filters of authorizations.
func AuthorizationFilters(authorizations []Authorization) wire.List[AuthorizationFilter] {
	var out []AuthorizationFilter
	for i := range authorizations {
		out = append(out, authorizations[i].Filters()...)
	}
	return wire.ListOf(out)
}

// IsAuthorization reports whether a name belongs to a filter of authorizations.
func IsAuthorization(list []Authorization, name string) bool {
	return slices.ContainsFunc(list, func(a Authorization) bool {
		return slices.ContainsFunc(a.Filters(), func(f AuthorizationFilter) bool { return f.Name == name })
	})
}

// AuthorizationUnit generates the configuration of a filter.
type AuthorizationUnit struct {
	Of     Authorization
	Filter AuthorizationFilter
}

// Type implements units.Unit.
func (u AuthorizationUnit) Type() string { return xdswire.ExtensionType }

// Generate implements units.Unit.
func (u AuthorizationUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	config := u.Of.provides(u.Filter)
	if !u.Filter.Calls {
		enforced, recorded := u.Of.Rules(RuleMaker{network: u.Filter.Network})
		config = u.Of.rbacFilter(u.Filter.Network, enforced, recorded)
	}
	g.Add(xdswire.ExtensionType, u.Filter.Name, &corev3.TypedExtensionConfig{Name: u.Filter.Name, TypedConfig: g.Any(config)})
	return g.Resources()
}

// The prefixes of statistics and metadata of rules whose decision is recorded, as with Istio.
const (
	customPrefix = "istio_ext_authz_"
	dryRunPrefix = "istio_dry_run_"
)

// rbacFilter returns the configuration of the filter with rules, each of which may be nil.
func (a *Authorization) rbacFilter(network bool, enforced, recorded *rbacv3.RBAC) proto.Message {
	prefix := ""
	switch {
	case a.Action == securityv1beta1.AuthorizationPolicy_CUSTOM:
		recorded, prefix = enforced, a.metadataPrefix()
		if a.calls(network) {
			enforced = nil
		}
	case recorded != nil:
		prefix = dryRunPrefix + strings.ToLower(a.Action.String()) + "_"
	}
	if network {
		return &networkrbacv3.RBAC{StatPrefix: "tcp.", Rules: enforced, ShadowRules: recorded, ShadowRulesStatPrefix: prefix}
	}
	return &httprbacv3.RBAC{Rules: enforced, ShadowRules: recorded, ShadowRulesStatPrefix: prefix}
}

// Rules returns the rules of the policies, and the rules of policies whose decision is only
// recorded. Either is nil if there are no such policies. The argument chooses the protocol.
func (a *Authorization) Rules(r RuleMaker) (enforced, recorded *rbacv3.RBAC) {
	r.action, r.domains, r.rawPaths = a.Action, a.domains, a.rawPaths
	for p := range a.Policies.All {
		into := &enforced
		if p.DryRun {
			into = &recorded
		}
		if *into == nil {
			*into = &rbacv3.RBAC{Action: rbacAction(a.Action), Policies: make(map[string]*rbacv3.Policy)}
		}
		r.namespace = p.Namespace
		for i, rule := range p.Spec.GetRules() {
			if a.Action == securityv1beta1.AuthorizationPolicy_ALLOW && slices.Contains(p.Doubtful, i) {
				continue
			}
			if policy := r.Policy(rule); policy != nil {
				(*into).Policies[a.policyName(p, i)] = policy
			}
		}
		if len(p.Spec.GetRules()) == 0 {
			(*into).Policies[a.policyName(p, 0)] = matchNothing()
		}
	}
	return enforced, recorded
}

func rbacAction(a securityv1beta1.AuthorizationPolicy_Action) rbacv3.RBAC_Action {
	switch a {
	case securityv1beta1.AuthorizationPolicy_ALLOW:
		return rbacv3.RBAC_ALLOW
	case securityv1beta1.AuthorizationPolicy_AUDIT:
		return rbacv3.RBAC_LOG
	default:
		return rbacv3.RBAC_DENY
	}
}

// policyName returns the name of a rule, as with Istio.
func (a *Authorization) policyName(p *snapshot.AuthorizationPolicy, rule int) string {
	name := "ns[" + p.Namespace + "]-policy[" + p.Name + "]-rule[" + wire.PortString(uint32(rule)) + "]"
	if a.Action == securityv1beta1.AuthorizationPolicy_CUSTOM {
		return customRule + "-" + name
	}
	return name
}

// customRule is the start of the names of rules with action CUSTOM.
const customRule = "istio-ext-authz"

// Discovery returns the source of a filter's configuration. Without one, Envoy refuses
// requests and connections.
func (f *AuthorizationFilter) Discovery() *corev3.ExtensionConfigSource {
	var m proto.Message
	switch {
	case f.Calls:
		m = emptyAuthorizer(f.Network)
	case f.Network:
		m = &networkrbacv3.RBAC{}
	default:
		m = &httprbacv3.RBAC{}
	}
	return &corev3.ExtensionConfigSource{
		ConfigSource: wire.AdsSource(), TypeUrls: []string{"type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())},
	}
}
