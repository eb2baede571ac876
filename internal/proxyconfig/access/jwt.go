package access

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// tokenCheck evaluates one JWT filter.
type tokenCheck struct {
	*evaluation
	filter *jwtv3.JwtAuthentication
	used   []*jwtv3.JwtProvider // providers that accepted the token
}

// jwt evaluates whether the filter requires a token, and accepts the token of the request.
func (e *evaluation) jwt(name string, m *jwtv3.JwtAuthentication) {
	for _, p := range m.GetProviders() { // callers must not set what the filter sets
		for _, header := range p.GetClaimToHeaders() {
			e.remove(header.GetHeaderName())
		}
		if header := p.GetForwardPayloadHeader(); header != "" {
			e.remove(header)
		}
	}
	c := &tokenCheck{evaluation: e, filter: m}
	step := Step{Name: name, Verdict: Allowed, Why: "requires no token"}
	for _, rule := range m.GetRules() {
		matched := e.matchRoute(rule.GetMatch())
		if matched.truth == no {
			continue
		}
		f := matched
		if matched.truth == yes {
			f = c.rule(rule)
		}
		if step.Verdict, step.Why = f.verdict(), f.why; f.truth == no {
			step.Status = 401
		}
		break
	}
	if m.GetFilterStateRules() != nil {
		step.Verdict, step.Why = Undecided, "rules by filter state are not evaluated"
	}
	e.step(step)
	e.claimsUnknown = e.claimsUnknown || e.Open && e.Claims == nil
	for _, p := range c.used {
		e.accept(p)
	}
}

func (c *tokenCheck) rule(r *jwtv3.RequirementRule) finding {
	switch p := r.GetRequirementType().(type) {
	case *jwtv3.RequirementRule_Requires:
		return c.requirement(p.Requires)
	case *jwtv3.RequirementRule_RequirementName:
		return c.requirement(c.filter.GetRequirementMap()[p.RequirementName])
	}
	return finding{yes, "requires no token"}
}

func (c *tokenCheck) requirement(r *jwtv3.JwtRequirement) finding {
	switch p := r.GetRequiresType().(type) {
	case *jwtv3.JwtRequirement_ProviderName:
		return c.provider(p.ProviderName, nil)
	case *jwtv3.JwtRequirement_ProviderAndAudiences:
		return c.provider(p.ProviderAndAudiences.GetProviderName(), p.ProviderAndAudiences.GetAudiences())
	case *jwtv3.JwtRequirement_RequiresAny:
		return anyOf(p.RequiresAny.GetRequirements(), c.requirement)
	case *jwtv3.JwtRequirement_RequiresAll:
		return all(p.RequiresAll.GetRequirements(), c.requirement)
	case *jwtv3.JwtRequirement_AllowMissing:
		if c.Claims == nil {
			return finding{yes, "requires no token"}
		}
		return finding{no, "a token must be valid"}
	case *jwtv3.JwtRequirement_AllowMissingOrFailed:
		return finding{yes, "requires no token"}
	case nil:
		return finding{yes, "requires no token"}
	}
	return undecidable("this requirement for tokens is not evaluated")
}

// provider evaluates whether a provider accepts the token.
func (c *tokenCheck) provider(name string, audiences []string) finding {
	p := c.filter.GetProviders()[name]
	switch {
	case p == nil:
		return undecidable("provider " + name + " does not exist")
	case c.Claims == nil && c.Open:
		return undecidable("a token of " + p.GetIssuer() + " is required")
	case c.Claims == nil:
		return finding{no, "a token of " + p.GetIssuer() + " is required"}
	}
	issuer, stated := c.Claims["iss"].(string)
	switch {
	case !stated && len(c.filter.GetProviders()) > 1:
		return undecidable("the proxy accepts several issuers, and the claim iss is not given")
	case !stated:
		issuer = p.GetIssuer()
	case p.GetIssuer() != "" && issuer != p.GetIssuer():
		return compared("issuer", issuer, no, strconv.Quote(p.GetIssuer()))
	}
	if audiences == nil {
		audiences = p.GetAudiences()
	}
	if c.Claims["aud"] != nil && len(audiences) > 0 && !slices.ContainsFunc(texts(c.Claims["aud"]), func(aud string) bool { return slices.Contains(audiences, aud) }) {
		return finding{no, fmt.Sprintf("audience %q is not one of %s", texts(c.Claims["aud"]), strings.Join(audiences, ", "))}
	}
	if m := p.GetSubjects(); m != nil {
		subject, _ := c.Claims["sub"].(string)
		if t := matchString(m, subject); t != yes {
			return compared("subject", subject, t, describe(m))
		}
	}
	c.used = append(c.used, p)
	return finding{yes, "the token of " + issuer + " is accepted"}
}

// texts returns a claim that is a string or a list of strings.
func texts(claim any) []string {
	switch claim := claim.(type) {
	case string:
		return []string{claim}
	case []any:
		var out []string
		for _, item := range claim {
			if text, ok := item.(string); ok {
				out = append(out, text)
			}
		}
		return out
	}
	return nil
}

// accept records what the filter makes of an accepted token: metadata and headers.
func (e *evaluation) accept(p *jwtv3.JwtProvider) {
	if key := p.GetPayloadInMetadata(); key != "" {
		claims := maps.Clone(e.Claims)
		for name, values := range map[string][]string{"iss": {p.GetIssuer()}, "aud": p.GetAudiences()} {
			if _, stated := claims[name]; !stated && len(values) > 0 && values[0] != "" {
				claims[name] = values[0]
			}
		}
		for _, name := range p.GetNormalizePayloadInMetadata().GetSpaceDelimitedClaims() {
			if text, ok := claims[name].(string); ok {
				var items []any
				for item := range strings.FieldsSeq(text) {
					items = append(items, item)
				}
				claims[name] = items
			}
		}
		e.setMetadata(jwtMetadata, key, claims)
	}
	for _, c := range p.GetClaimToHeaders() {
		switch claim := claimAt(e.Claims, c.GetClaimName()).(type) {
		case nil:
		case string:
			e.setHeader(c.GetHeaderName(), claim)
		case bool:
			e.setHeader(c.GetHeaderName(), strconv.FormatBool(claim))
		default:
			e.setHeader(c.GetHeaderName()) // Envoy encodes it
		}
	}
}

// claimAt returns a claim whose name is a path with dots, nil if it is missing.
func claimAt(claims map[string]any, path string) any {
	if claim, ok := claims[path]; ok {
		return claim
	}
	name, rest, _ := strings.Cut(path, ".")
	if inner, ok := claims[name].(map[string]any); ok {
		return claimAt(inner, rest)
	}
	return nil
}

// matchRoute evaluates the part of a route match that depends on path and headers.
func (s *state) matchRoute(m *routev3.RouteMatch) finding {
	path, missing := s.pathOnly()
	var f finding
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		if p.Prefix == "/" {
			f = finding{yes, "any path"}
			break
		}
		f = s.matchPath(pathMatcher(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p.Prefix}}))
	case *routev3.RouteMatch_Path:
		f = s.matchPath(pathMatcher(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: p.Path}}))
	case *routev3.RouteMatch_SafeRegex:
		f = s.matchPath(pathMatcher(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: p.SafeRegex}}))
	case *routev3.RouteMatch_PathSeparatedPrefix:
		if missing != nil {
			return *missing
		}
		f = compared("path", path, truthOf(path == p.PathSeparatedPrefix || strings.HasPrefix(path, p.PathSeparatedPrefix+"/")), "below "+p.PathSeparatedPrefix)
	default:
		return undecidable("this match of routes is not evaluated")
	}
	if len(m.GetQueryParameters()) > 0 || m.GetRuntimeFraction() != nil || m.GetGrpc() != nil || m.GetTlsContext() != nil {
		f = all([]finding{f, undecidable("this match of routes is not evaluated")}, func(f finding) finding { return f })
	}
	return all([]finding{f, all(m.GetHeaders(), s.matchHeader)}, func(f finding) finding { return f })
}

func pathMatcher(m *matcherv3.StringMatcher) *matcherv3.PathMatcher {
	return &matcherv3.PathMatcher{Rule: &matcherv3.PathMatcher_Path{Path: m}}
}
