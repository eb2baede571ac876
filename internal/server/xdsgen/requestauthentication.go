package xdsgen

import (
	"cmp"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtauthnv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"google.golang.org/protobuf/types/known/emptypb"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

const (
	// filterJWT is the name of the filter that checks tokens, of its extension, and of the
	// metadata in which it keeps the claims of a valid token, at the key metadataClaims.
	filterJWT      = "envoy.filters.http.jwt_authn"
	metadataClaims = "payload"
)

// tokenRule is a rule for the tokens of requests to a workload, with its key set.
type tokenRule struct {
	*securityv1beta1.JWTRule
	keys string
}

// tokenRules returns the rules of all RequestAuthentications of a workload, beginning with the
// root namespace. While a key set was never fetched, the earlier keys of the rule count; without
// them, no token of the rule is valid.
func tokenRules(s *snapshot.Snapshot, namespace string, labels map[string]string) []tokenRule {
	var out []tokenRule
	eachPolicy(s, namespace, snapshot.KindRequestAuthentication, func(ns *snapshot.NamespaceFacts, p *snapshot.RequestAuthentication) {
		if !isAttached(p.Namespace, p.Spec, namespace, labels) {
			return
		}
		for _, r := range p.Spec.GetJwtRules() {
			keys := r.GetJwks()
			if source, ok := snapshot.KeySourceOf(r); ok {
				kept := ns.KeptKeys[snapshot.KeptKeys{Policy: p.Name, Issuer: r.GetIssuer(), Source: source}]
				keys = cmp.Or(ns.KeySets[source], kept, keyset.Nobodys)
			}
			out = append(out, tokenRule{r, keys})
		}
	})
	return out
}

// checksTokens reports whether a workload has the filter that checks tokens. A workload with
// AuthorizationPolicies has it even without rules: a policy about tokens reaches connections of
// draining listeners, too, and would refuse valid tokens there without the filter.
func checksTokens(rules []tokenRule, authorizations []authorization) bool {
	return len(rules)+len(authorizations) > 0
}

// tokenExtension returns the configuration of the filter that checks tokens. Without rules, it lets
// all requests pass.
func tokenExtension(rules []tokenRule, isGateway bool) extension {
	config := &jwtauthnv3.JwtAuthentication{
		Providers: make(map[string]*jwtauthnv3.JwtProvider, len(rules)), BypassCorsPreflight: true,
	}
	var names []string
	for i, r := range rules {
		name := fmt.Sprintf("origins-%d", i) // as with Istio
		names = append(names, name)
		config.Providers[name] = r.provider(isGateway)
	}
	if len(names) > 0 {
		config.Rules = []*jwtauthnv3.RequirementRule{{
			Match:           &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			RequirementType: &jwtauthnv3.RequirementRule_Requires{Requires: tokenRequirement(names)},
		}}
	}
	return extension{name: filterJWT, body: encodeSettings(&corev3.TypedExtensionConfig{Name: filterJWT, TypedConfig: mustAny(config)})}
}

// provider returns where the tokens of a rule are, how they are checked, and what a valid one
// leads to. At a gateway, its claims may choose another route.
func (r tokenRule) provider(isGateway bool) *jwtauthnv3.JwtProvider {
	out := &jwtauthnv3.JwtProvider{
		Issuer: r.GetIssuer(), Audiences: r.GetAudiences(),
		JwksSourceSpecifier: &jwtauthnv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: r.keys},
		}},
		Forward:           r.GetForwardOriginalToken(),
		FromParams:        r.GetFromParams(),
		FromCookies:       r.GetFromCookies(),
		PayloadInMetadata: metadataClaims,
		NormalizePayloadInMetadata: &jwtauthnv3.JwtProvider_NormalizePayload{
			SpaceDelimitedClaims: append([]string{"scope", "permission"}, r.GetSpaceDelimitedClaims()...),
		},
		ForwardPayloadHeader: r.GetOutputPayloadToHeader(),
		ClearRouteCache:      isGateway,
	}
	for _, h := range r.GetFromHeaders() {
		out.FromHeaders = append(out.FromHeaders, &jwtauthnv3.JwtHeader{Name: h.GetName(), ValuePrefix: h.GetPrefix()})
	}
	for _, h := range r.GetOutputClaimToHeaders() {
		out.ClaimToHeaders = append(out.ClaimToHeaders, &jwtauthnv3.JwtClaimToHeader{HeaderName: h.GetHeader(), ClaimName: h.GetClaim()})
	}
	return out
}

// tokenRequirement returns the requirement that requests have no token, or a valid one. With
// several providers, one valid token suffices, because some may look in the same place and
// refuse the tokens of the others; without one, no provider may find a token.
func tokenRequirement(providers []string) *jwtauthnv3.JwtRequirement {
	missing := &jwtauthnv3.JwtRequirement{RequiresType: &jwtauthnv3.JwtRequirement_AllowMissing{AllowMissing: &emptypb.Empty{}}}
	var valid, each []*jwtauthnv3.JwtRequirement
	for _, name := range providers {
		one := &jwtauthnv3.JwtRequirement{RequiresType: &jwtauthnv3.JwtRequirement_ProviderName{ProviderName: name}}
		valid, each = append(valid, one), append(each, anyOf(one, missing))
	}
	if len(valid) == 1 {
		return each[0]
	}
	return anyOf(append(valid, &jwtauthnv3.JwtRequirement{RequiresType: &jwtauthnv3.JwtRequirement_RequiresAll{
		RequiresAll: &jwtauthnv3.JwtRequirementAndList{Requirements: each},
	}})...)
}

func anyOf(list ...*jwtauthnv3.JwtRequirement) *jwtauthnv3.JwtRequirement {
	return &jwtauthnv3.JwtRequirement{RequiresType: &jwtauthnv3.JwtRequirement_RequiresAny{
		RequiresAny: &jwtauthnv3.JwtRequirementOrList{Requirements: list},
	}}
}
