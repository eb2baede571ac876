package meshconfig

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// authorizerSettings are the fields that providers of external authorization by HTTP and by
// gRPC share.
type authorizerSettings interface {
	addressed
	GetTimeout() *durationpb.Duration
	GetStatusOnError() string
	GetIncludeRequestBodyInCheck() *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody
}

// authorizerSettingsFault returns the reason why a provider of external authorization is not
// used. is reports whether the provider is one.
func authorizerSettingsFault(field string, p *meshv1alpha1.MeshConfig_ExtensionProvider) (fault *fields.Error, is bool) {
	if grpc := p.GetEnvoyExtAuthzGrpc(); grpc != nil {
		return fields.Under(field+".envoyExtAuthzGrpc", commonAuthorizerFault(grpc)), true
	}
	web := p.GetEnvoyExtAuthzHttp()
	if web == nil {
		return nil, false
	}
	fault = commonAuthorizerFault(web)
	if prefix := web.GetPathPrefix(); fault == nil && prefix != "" && prefix[0] != '/' {
		fault = fields.Faultf("pathPrefix", "%q does not begin with a slash: %s", prefix, refusedPolicies)
	}
	added := web.GetIncludeAdditionalHeadersInCheck()
	for _, name := range slices.Sorted(maps.Keys(added)) {
		if fault == nil && (!fields.IsHeaderName(name) || strings.ContainsAny(added[name], "\x00\r\n")) {
			fault = fields.Faultf("includeAdditionalHeadersInCheck["+name+"]", "is not a header: %s", refusedPolicies)
		}
	}
	for _, list := range []struct {
		name  string
		names []string
	}{
		{"includeRequestHeadersInCheck", web.GetIncludeRequestHeadersInCheck()},
		{"headersToUpstreamOnAllow", web.GetHeadersToUpstreamOnAllow()},
		{"includeHeadersInCheck", web.GetIncludeHeadersInCheck()}, //nolint:staticcheck // Istio reads it, too
		{"headersToDownstreamOnDeny", web.GetHeadersToDownstreamOnDeny()},
		{"headersToDownstreamOnAllow", web.GetHeadersToDownstreamOnAllow()},
	} {
		for i, name := range list.names {
			if fixed := strings.TrimSuffix(strings.TrimPrefix(name, "*"), "*"); fault == nil && !fields.IsHeaderName(fixed) {
				fault = fields.Faultf(fields.At(list.name, i), "%q is not the name of a header, nor a part of one with *: %s", name, refusedPolicies)
			}
		}
	}
	return fields.Under(field+".envoyExtAuthzHttp", fault), true
}

// refusedPolicies is the consequence of a provider that is not used.
const refusedPolicies = "the provider is not used, and what its policies match is refused"

// unknownToEnvoy holds the statuses of HTTP that Envoy does not send.
var unknownToEnvoy = []int{http.StatusTeapot, http.StatusTooEarly, http.StatusUnavailableForLegalReasons}

func commonAuthorizerFault(s authorizerSettings) *fields.Error {
	const maxTimeout = time.Hour
	if fault := collectorFault("", s, "", nil); fault != nil {
		fault.Field = strings.TrimPrefix(fault.Field, ".")
		return fault
	}
	if d := s.GetTimeout(); d != nil && (d.AsDuration() <= 0 || d.AsDuration() > maxTimeout) {
		return fields.Faultf("timeout", "%s: want more than 0 and at most %s: %s", d.AsDuration(), maxTimeout, refusedPolicies)
	}
	if text := s.GetStatusOnError(); text != "" {
		code, err := strconv.Atoi(text)
		if err != nil || code < 200 || http.StatusText(code) == "" || slices.Contains(unknownToEnvoy, code) {
			return fields.Faultf("statusOnError", "%q is not a status of HTTP: %s", text, refusedPolicies)
		}
	}
	if b := s.GetIncludeRequestBodyInCheck(); b != nil && b.GetMaxRequestBytes() == 0 {
		return fields.Faultf("includeRequestBodyInCheck.maxRequestBytes", "is missing: %s", refusedPolicies)
	}
	return nil
}
