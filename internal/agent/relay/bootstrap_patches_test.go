package relay

import (
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// TestBootstrapPatch: there is one bootstrap at most, and a response without one means that there
// are no patches.
func TestBootstrapPatch(t *testing.T) {
	patch, err := anypb.New(&bootstrapv3.Bootstrap{StatsFlushInterval: durationpb.New(1)})
	check(t, err)
	other, err := anypb.New(&meshv1alpha1.ProxyConfig{})
	check(t, err)
	for name, tc := range map[string]struct {
		resources []*anypb.Any
		want      string
		ok        bool
	}{
		"none":  {nil, "", true},
		"one":   {[]*anypb.Any{patch}, string(patch.GetValue()), true},
		"two":   {[]*anypb.Any{patch, patch}, "", false},
		"other": {[]*anypb.Any{other}, "", false},
	} {
		got, called := "", false
		err := BootstrapPatch(func(b []byte) error { got, called = string(b), true; return nil }).Handle("", tc.resources)
		if (err == nil) != tc.ok || called != tc.ok || got != tc.want {
			t.Errorf("%s: received %q (%v), error %v", name, got, called, err)
		}
	}
}
