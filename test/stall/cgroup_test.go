//go:build linux && !race

package stall

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// memoryGroup makes a cgroup with a memory limit, v1 or v2, and returns the file that
// takes a process in.
func memoryGroup(t *testing.T, limit int64) (procs string) {
	t.Helper()
	for root, file := range map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"} {
		dir, err := os.MkdirTemp(root, "meshctl-test-") //nolint:usetesting // a cgroup, which is removed without what is in it
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		if os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0o600) == nil {
			return filepath.Join(dir, "cgroup.procs")
		}
	}
	t.Skip("no cgroup with a memory limit can be made: it needs root, and the memory controller")
	return ""
}

// TestMemoryLimitOfTheCgroup: serve keeps within nine tenths of what its cgroup
// allows, without GOMEMLIMIT.
func TestMemoryLimitOfTheCgroup(t *testing.T) {
	procs := memoryGroup(t, container)
	s := startSecure(t, func(binary string) []string {
		return []string{"env", "-u", "GOMEMLIMIT", "sh", "-c", `echo $$ > "$0" && exec "$@"`, procs, binary}
	})
	if got := s.metric("go_gc_gomemlimit_bytes"); got < goLimit-10 || got > goLimit+10 {
		t.Errorf("the limit is %v, want %v", got, goLimit)
	}
}
