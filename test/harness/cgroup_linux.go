package harness

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// MemoryGroup makes a cgroup with a memory limit in bytes, v1 or v2, and returns the file that
// takes a process in. It skips the test where no such cgroup can be made.
func MemoryGroup(t testing.TB, limit int64) (procs string) {
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
