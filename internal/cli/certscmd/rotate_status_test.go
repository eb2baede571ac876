package certscmd

import (
	"testing"

	"github.com/meshctl/meshctl/internal/certs/rotate"
	"github.com/meshctl/meshctl/internal/proxystatus"
)

// TestRotateStatusWaits: the next step waits for the time, proxies and control planes.
func TestRotateStatusWaits(t *testing.T) {
	behind := &rotateAnswer{
		ControlPlanes: []rotateControlPlane{{Replica: "a", Problem: "old roots"}, {Replica: "b", Error: "silent"}, {Replica: "c"}},
		Readiness:     proxystatus.Readiness{Behind: make([]proxystatus.Behind, 2)},
	}
	for _, tc := range []struct {
		waits  string
		answer *rotateAnswer
		want   string
	}{
		{rotate.Nothing, nil, "nothing"},
		{rotate.Nothing, &rotateAnswer{}, "nothing"},
		{"the time", nil, "the time"},
		{rotate.Nothing, behind, "2 proxies to be ready; 1 control plane to answer; 1 control plane to be ready"},
		{"the time", behind, "the time; 2 proxies to be ready; 1 control plane to answer; 1 control plane to be ready"},
	} {
		if got := waitsFor(&rotate.Status{Waits: tc.waits}, tc.answer); got != tc.want {
			t.Errorf("%q: got %q, want %q", tc.waits, got, tc.want)
		}
	}
}
