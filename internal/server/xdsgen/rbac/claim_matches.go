package rbac

import (
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// ClaimMatch returns the condition on a claim of a request's valid token, which is a text or
// a list of texts. The filter that checks tokens keeps the claims in metadata.
func ClaimMatch(path []string, m *networkingv1alpha3.StringMatch, invert bool) *matcherv3.MetadataMatcher {
	out := metadataMatcher(FilterJWT, claimValue(m), append([]string{metadataClaims}, path...)...)
	out.Invert = invert
	return out
}

func claimValue(m *networkingv1alpha3.StringMatch) *matcherv3.ValueMatcher {
	text := wire.StringMatcher(m)
	if text == nil {
		return &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}
	}
	return textOrList(text)
}
