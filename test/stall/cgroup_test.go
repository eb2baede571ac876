//go:build linux && !race

package stall

import (
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// TestMemoryLimitOfTheCgroup: serve keeps within nine tenths of what its cgroup
// allows, without GOMEMLIMIT.
func TestMemoryLimitOfTheCgroup(t *testing.T) {
	procs := harness.MemoryGroup(t, container)
	s := startSecure(t, func(binary string) []string {
		return []string{"env", "-u", "GOMEMLIMIT", "sh", "-c", `echo $$ > "$0" && exec "$@"`, procs, binary}
	})
	if got := s.metric("go_gc_gomemlimit_bytes"); got < goLimit-10 || got > goLimit+10 {
		t.Errorf("the limit is %v, want %v", got, goLimit)
	}
}
