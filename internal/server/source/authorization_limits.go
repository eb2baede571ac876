package source

import (
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// matchersFault checks what the values of an AuthorizationPolicy become in a proxy.
func matchersFault(p *securityv1beta1.AuthorizationPolicy) *FieldError {
	n, bytes := 0, 0
	var fault *FieldError
	snapshot.EachMatched(p, func(field, value string, matchers int) {
		if len(value) > maxMatchedText && fault == nil {
			fault = limitf(field, "has a value of %d bytes, at most %d are accepted", len(value), maxMatchedText)
		}
		n += matchers
		bytes += matchers * len(value)
	})
	if fault == nil && (n > maxMatchers || bytes > maxMatchedBytes) {
		fault = limitf("rules", "become %d matchers of %d bytes: at most %d of %d bytes are accepted; split the policy", n, bytes, maxMatchers, maxMatchedBytes)
	}
	return fault
}
