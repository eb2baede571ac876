package clusters

import (
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	stringv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// statusMatcher matches responses with one of the codes.
func statusMatcher(codes []uint32) *matcherv3.MatchPredicate {
	var rules []*matcherv3.MatchPredicate
	for _, code := range codes {
		rules = append(rules, &matcherv3.MatchPredicate{Rule: &matcherv3.MatchPredicate_HttpResponseHeadersMatch{
			HttpResponseHeadersMatch: &matcherv3.HttpHeadersMatch{Headers: []*routev3.HeaderMatcher{{
				Name: ":status",
				HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &stringv3.StringMatcher{
					MatchPattern: &stringv3.StringMatcher_Exact{Exact: strconv.Itoa(int(code))},
				}},
			}}},
		}})
	}
	if len(rules) == 1 {
		return rules[0]
	}
	return &matcherv3.MatchPredicate{Rule: &matcherv3.MatchPredicate_OrMatch{OrMatch: &matcherv3.MatchPredicate_MatchSet{Rules: rules}}}
}

// OutlierDetection returns the settings by which the proxy leaves out endpoints that
// fail, or nil. Failures are counted; the rate of success does not matter.
func OutlierDetection(o *networkingv1alpha3.OutlierDetection) *clusterv3.OutlierDetection {
	if o == nil {
		return nil
	}
	out := &clusterv3.OutlierDetection{
		EnforcingSuccessRate: wrapperspb.UInt32(0), Interval: o.GetInterval(), BaseEjectionTime: o.GetBaseEjectionTime(),
	}
	enforce := func(n uint32) *wrapperspb.UInt32Value {
		if n > 0 {
			n = 100
		}
		return wrapperspb.UInt32(n)
	}
	if n := o.GetConsecutive_5XxErrors(); n != nil {
		out.Consecutive_5Xx, out.EnforcingConsecutive_5Xx = n, enforce(n.GetValue())
	}
	if n := o.GetConsecutiveGatewayErrors(); n != nil {
		out.ConsecutiveGatewayFailure, out.EnforcingConsecutiveGatewayFailure = n, enforce(n.GetValue())
	}
	if n := o.GetMaxEjectionPercent(); n > 0 {
		out.MaxEjectionPercent = wrapperspb.UInt32(uint32(n))
	}
	if o.GetSplitExternalLocalOriginErrors() {
		out.SplitExternalLocalOriginErrors = true
		if n := o.GetConsecutiveLocalOriginFailures(); n.GetValue() > 0 {
			out.ConsecutiveLocalOriginFailure, out.EnforcingConsecutiveLocalOriginFailure = n, wrapperspb.UInt32(100)
		}
		out.EnforcingLocalOriginSuccessRate = wrapperspb.UInt32(0)
	}
	return out
}
