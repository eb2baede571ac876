package access

import (
	"cmp"
	"maps"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	netrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/mesh"
)

// PortPolicies are the security policies in force at a port of a workload.
type PortPolicies struct {
	Port uint32 `json:"port"`
	// MTLS is the mode of mTLS in the terms of PeerAuthentication. For a gateway, STRICT
	// means that the port accepts only TLS.
	MTLS string `json:"mtls"`
	// Policies are the AuthorizationPolicies, as name.namespace, by action. Those that only
	// record what they would decide have the action "DRY RUN".
	Policies map[string][]string `json:"policies,omitempty"`
	// Providers are the external authorizers that may be asked.
	Providers []string `json:"providers,omitempty"`
	// Issuers are the issuers whose tokens are accepted.
	Issuers []string `json:"issuers,omitempty"`
}

// The modes of PortPolicies.MTLS.
const (
	modeStrict     = "STRICT"
	modePermissive = "PERMISSIVE"
	modeDisable    = "DISABLE"
)

// Actions of policies that are none of RBAC.
const (
	actionCustom = "CUSTOM"
	actionDryRun = "DRY RUN"
)

// Policies returns the security policies in force, by port.
func Policies(c *Config) []PortPolicies {
	var out []PortPolicies
	for _, port := range c.Ports() {
		p := PortPolicies{Port: port, Policies: map[string][]string{}}
		for _, plain := range []bool{true, false} {
			r := &Request{Port: port, Open: true, TLS: !plain}
			if !plain {
				r.ALPN, r.Peer = []string{"istio"}, &Peer{}
			}
			l := c.listener(r)
			s := state{Request: r}
			chain := s.chain(l)
			if chain == nil || plain && requiresTLS(chain) {
				continue
			}
			switch {
			case plain:
				p.MTLS = modeDisable
			case !requiresTLS(chain):
			case p.MTLS == modeDisable:
				p.MTLS = modePermissive
			default:
				p.MTLS = modeStrict
			}
			for _, f := range chain.GetFilters() {
				p.add(c, c.extension(f.GetName(), f.GetTypedConfig(), f.GetConfigDiscovery()))
			}
		}
		for _, list := range p.Policies {
			slices.Sort(list)
		}
		out = append(out, p)
	}
	return out
}

// requiresTLS reports whether a filter chain terminates TLS.
func requiresTLS(chain *listenerv3.FilterChain) bool {
	ts := chain.GetTransportSocket()
	return ts != nil && ts.GetName() != rawBuffer
}

// add adds the policies of a filter.
func (p *PortPolicies) add(c *Config, config *anypb.Any) {
	if config == nil {
		return
	}
	switch m := message(config).(type) {
	case *netrbacv3.RBAC:
		p.rules(m.GetRules(), "")
		p.rules(m.GetShadowRules(), actionDryRun)
	case *httprbacv3.RBAC:
		p.rules(m.GetRules(), "")
		p.rules(m.GetShadowRules(), actionDryRun)
	case *extauthzv3.ExtAuthz:
		if name := provider(m); name != mesh.BlackHoleCluster {
			include(&p.Providers, name)
		}
	case *jwtv3.JwtAuthentication:
		for _, name := range slices.Sorted(maps.Keys(m.GetProviders())) {
			include(&p.Issuers, m.GetProviders()[name].GetIssuer())
		}
	case *hcmv3.HttpConnectionManager:
		for _, f := range m.GetHttpFilters() {
			p.add(c, c.extension(f.GetName(), f.GetTypedConfig(), f.GetConfigDiscovery()))
		}
	}
}

// rules adds the policies of rules, with an action instead of the action of the rules.
func (p *PortPolicies) rules(r *rbacv3.RBAC, action string) {
	for name := range r.GetPolicies() {
		policy, ok := ParsePolicy(name)
		of := cmp.Or(action, r.GetAction().String())
		title := name
		if ok {
			title = policy.Name + "." + policy.Namespace
		}
		if policy.Custom {
			of = actionCustom
		}
		list := p.Policies[of]
		include(&list, title)
		p.Policies[of] = list
	}
}

// include adds a value to a set.
func include(list *[]string, value string) {
	if !slices.Contains(*list, value) {
		*list = append(*list, value)
	}
}

// InForce returns the ports at which policies are in force that are not the default.
func InForce(c *Config) []PortPolicies {
	return slices.DeleteFunc(Policies(c), func(p PortPolicies) bool {
		return p.MTLS != modeStrict && len(p.Policies)+len(p.Providers)+len(p.Issuers) == 0
	})
}
