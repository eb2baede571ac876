//go:build linux && !race

package stall

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// memoryGroup makes a cgroup with a memory limit, v1 or v2, and returns the file that
// takes a process in.
func memoryGroup(t *testing.T, limit int64) (procs string) {
	t.Helper()
	for _, v := range []struct{ root, file string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"},
	} {
		dir, err := os.MkdirTemp(v.root, "meshctl-test-") //nolint:usetesting // a cgroup, which is removed without its files
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		// The kernel makes the file, and only where the controller is: with v1 the
		// parent of the controllers is an ordinary file system.
		f, err := os.OpenFile(filepath.Join(dir, v.file), os.O_WRONLY, 0)
		if err != nil {
			continue
		}
		_, err = f.WriteString(strconv.FormatInt(limit, 10))
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, "cgroup.procs")
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
