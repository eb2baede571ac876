package proxyless

import (
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestGRPCRetries: gRPC without a proxy repeats calls as often as MeshConfig and VirtualServices
// say, after the states that it knows.
func TestGRPCRetries(t *testing.T) {
	for _, tt := range []struct {
		policy snapshot.RetryPolicy
		want   uint32
		on     string
	}{
		{snapshot.RetryPolicy{}, 2, "unavailable,cancelled"},
		{snapshot.RetryPolicy{Attempts: 5}, 5, "unavailable,cancelled"},
		{snapshot.RetryPolicy{Off: true}, 0, ""},
		{snapshot.RetryPolicy{Attempts: 1, On: "5xx,gateway-error,internal"}, 1, "unavailable,internal"},
		{snapshot.RetryPolicy{Attempts: 1, On: "retriable-4xx"}, 0, ""},
	} {
		policy := grpcRetries(tt.policy)
		if policy.GetNumRetries().GetValue() != tt.want || policy.GetRetryOn() != tt.on || (policy == nil) != (tt.want == 0) {
			t.Errorf("%+v: got %v, want %d retries after %q", tt.policy, policy, tt.want, tt.on)
		}
	}
}
