package snapshot

import (
	"slices"
	"strconv"
	"strings"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// RetryPolicy sets how proxies repeat failed requests. The zero value is Istio's default:
// two retries after errors that do no harm, on other hosts.
type RetryPolicy struct {
	Off bool
	// Attempts is the number of retries; 0 means 2.
	Attempts uint32
	// On holds Envoy's conditions, joined by commas; empty means the default. Codes holds
	// status codes, as bytes of big-endian numbers of two bytes.
	On, Codes string
	// SameHosts permits hosts that have failed.
	SameHosts bool
	// OtherLocalities prefers localities that have not failed.
	OtherLocalities bool
	Backoff         time.Duration // 0 means Envoy's
	PerTry          time.Duration // the timeout of each try; 0 means none
}

// RetryPolicyOf returns the policy of a message, which may be nil.
func RetryPolicyOf(m *networkingv1alpha3.HTTPRetry) RetryPolicy {
	if m == nil {
		return RetryPolicy{}
	}
	out := RetryPolicy{
		Off: m.GetAttempts() == 0, Attempts: uint32(m.GetAttempts()), Backoff: m.GetBackoff().AsDuration(), PerTry: m.GetPerTryTimeout().AsDuration(),
		SameHosts:       m.GetRetryIgnorePreviousHosts() != nil && !m.GetRetryIgnorePreviousHosts().GetValue(),
		OtherLocalities: m.GetRetryRemoteLocalities().GetValue(),
	}
	var on []string
	for condition := range strings.SplitSeq(m.GetRetryOn(), ",") {
		condition = strings.TrimSpace(condition)
		if code, err := strconv.ParseUint(condition, 10, 16); err == nil {
			out.Codes += string([]byte{byte(code >> 8), byte(code)})
		} else if condition != "" {
			on = append(on, condition)
		}
	}
	if out.Codes != "" && !slices.Contains(on, "retriable-status-codes") {
		on = append(on, "retriable-status-codes")
	}
	out.On = strings.Join(on, ",")
	return out
}
