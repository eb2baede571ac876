package source

import (
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// matchersFault checks what the values of an AuthorizationPolicy become in a proxy.
func matchersFault(p *securityv1beta1.AuthorizationPolicy) *fields.Error {
	n, bytes := 0, 0
	var fault *fields.Error
	snapshot.EachMatched(p, func(field, value string, matchers int) {
		if len(value) > maxMatchedText && fault == nil {
			fault = fields.Limitf(field, "has a value of %d bytes, at most %d are accepted", len(value), maxMatchedText)
		}
		n += matchers
		bytes += matchers * len(value)
	})
	if fault == nil && (n > maxMatchers || bytes > maxMatchedBytes) {
		fault = fields.Limitf("rules", "become %d matchers of %d bytes: at most %d of %d bytes are accepted; split the policy", n, bytes, maxMatchers, maxMatchedBytes)
	}
	return fault
}
