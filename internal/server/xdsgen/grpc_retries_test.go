package xdsgen

import (
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestGRPCRetries: gRPC without a proxy repeats calls as often as MeshConfig says.
func TestGRPCRetries(t *testing.T) {
	for _, tt := range []struct {
		policy snapshot.RetryPolicy
		want   uint32
	}{
		{snapshot.RetryPolicy{}, 2},
		{snapshot.RetryPolicy{Attempts: 5}, 5},
		{snapshot.RetryPolicy{Off: true}, 0},
	} {
		policy := grpcRoutes("cluster", tt.policy).GetVirtualHosts()[0].GetRoutes()[0].GetRoute().GetRetryPolicy()
		if got := policy.GetNumRetries().GetValue(); got != tt.want || tt.policy.Off != (policy == nil) {
			t.Errorf("%+v: %d retries by %v, want %d", tt.policy, got, policy, tt.want)
		}
	}
}
