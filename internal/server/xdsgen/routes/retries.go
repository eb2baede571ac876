package routes

import (
	"cmp"
	"sync"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// defaultRetryOn holds the conditions after which Istio repeats requests.
const defaultRetryOn = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"

// defaultAttempts is the number of times that Istio repeats a request. It must not be changed.
var defaultAttempts = wrapperspb.UInt32(2)

// Attempts returns a number of retries; 0 means the default.
func Attempts(n uint32) *wrapperspb.UInt32Value {
	if n == 0 {
		return defaultAttempts
	}
	return wrapperspb.UInt32(n)
}

// defaultRetries is the encoded policy of most routes.
var defaultRetries = sync.OnceValue(func() *routev3.RetryPolicy {
	return wire.PreEncoded(newRetryPolicy(new(wire.Generator), snapshot.RetryPolicy{}))
})

// retryPolicy returns the retries of a route, or nil for none. The message must not be read or changed.
func retryPolicy(g *wire.Generator, p snapshot.RetryPolicy) *routev3.RetryPolicy {
	switch {
	case p.Off:
		return nil
	case p == snapshot.RetryPolicy{}:
		return defaultRetries()
	}
	return newRetryPolicy(g, p)
}

func newRetryPolicy(g *wire.Generator, p snapshot.RetryPolicy) *routev3.RetryPolicy {
	out := &routev3.RetryPolicy{
		RetryOn:                       cmp.Or(p.On, defaultRetryOn),
		NumRetries:                    Attempts(p.Attempts),
		HostSelectionRetryMaxAttempts: 5,
	}
	for i := 0; i+1 < len(p.Codes); i += 2 {
		out.RetriableStatusCodes = append(out.RetriableStatusCodes, uint32(p.Codes[i])<<8|uint32(p.Codes[i+1]))
	}
	if !p.SameHosts {
		out.RetryHostPredicate = otherHosts()
	}
	if p.OtherLocalities {
		out.RetryPriority = &routev3.RetryPolicy_RetryPriority{
			Name: "envoy.retry_priorities.previous_priorities",
			ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{
				TypedConfig: g.Any(&previousprioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 2}),
			},
		}
	}
	if p.Backoff > 0 {
		out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(p.Backoff)}
	}
	if p.PerTry > 0 {
		out.PerTryTimeout = durationpb.New(p.PerTry)
	}
	return out
}

// otherHosts chooses another endpoint for each retry. It must not be changed.
var otherHosts = sync.OnceValue(func() []*routev3.RetryPolicy_RetryHostPredicate {
	return []*routev3.RetryPolicy_RetryHostPredicate{{
		Name: "envoy.retry_host_predicates.previous_hosts",
		ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
			TypedConfig: wire.MustAny(&previoushostsv3.PreviousHostsPredicate{}),
		},
	}}
})
