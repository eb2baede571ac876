package wire

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// StringMatcher returns the condition on a text, or nil if any text meets it. The regular
// expression "*" is Istio's word for any.
func StringMatcher(m *networkingv1alpha3.StringMatch) *matcherv3.StringMatcher {
	switch t := m.GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Exact:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: t.Exact}}
	case *networkingv1alpha3.StringMatch_Prefix:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: t.Prefix}}
	case *networkingv1alpha3.StringMatch_Regex:
		if t.Regex != "*" {
			return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: t.Regex}}}
		}
	}
	return nil
}

// CidrRange returns a range of addresses.
func CidrRange(p netip.Prefix) *corev3.CidrRange {
	return &corev3.CidrRange{AddressPrefix: p.Addr().String(), PrefixLen: wrapperspb.UInt32(uint32(p.Bits()))}
}
