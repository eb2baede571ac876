package clusters

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupsVar is set in the environment of a node's first process once it has its own
// control groups.
const cgroupsVar = "MESHCTL_TEST_NODE_CGROUPS"

// hierarchy is a mounted hierarchy of control groups.
type hierarchy struct {
	at   string
	kind string // cgroup or cgroup2
	// controllers are the options by which the kernel finds a hierarchy of the first version.
	controllers string
}

func hierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var out []hierarchy
	for lines := bufio.NewScanner(bytes.NewReader(mounts)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 4 || f[2] != "cgroup" && f[2] != "cgroup2" {
			continue
		}
		h := hierarchy{at: f[1], kind: f[2]}
		if h.kind == "cgroup" {
			h.controllers = strings.Join(slices.DeleteFunc(strings.Split(f[3], ","), func(o string) bool {
				general := []string{"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "xattr", "clone_children"}
				return slices.Contains(general, o) || strings.HasPrefix(o, "release_agent=")
			}), ",")
		}
		out = append(out, h)
	}
	return out, nil
}

// ownCgroups moves this process into new groups, which become the root groups of a new
// namespace, and starts its program again there. All groups of the cluster are below them.
func (n *node) ownCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := h.at + n.Cgroup
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			// A new group of the first version has no processors.
			if h.kind != "cgroup" || !slices.Contains(strings.Split(h.controllers, ","), "cpuset") {
				break
			}
			value, err := os.ReadFile(filepath.Join(h.at, name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), value, 0o600)
			}
			if err != nil {
				return err
			}
		}
		if err := join(dir); err != nil {
			return err
		}
	}
	runtime.LockOSThread() // the new program has the namespaces of this thread
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), cgroupsVar+"=1"))
}

// join moves this process into a group.
func join(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o600)
}

// mountCgroups mounts the groups as the namespace shows them.
func mountCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		if err := unix.Unmount(h.at, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("%s: %w", h.at, err)
		}
		if err := unix.Mount(h.kind, h.at, h.kind, 0, h.controllers); err != nil {
			return fmt.Errorf("%s: %w", h.at, err)
		}
		if h.kind == "cgroup2" {
			// A group with processes cannot have groups with controllers.
			dir := filepath.Join(h.at, "node")
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
			if err := join(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeCgroups removes the control groups of an ended node, from the innermost.
func (n *node) removeCgroups() error {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup" + n.Cgroup, "/sys/fs/cgroup/*" + n.Cgroup} {
		roots, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, root := range roots {
			err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					found = append(found, path)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	slices.Reverse(found)
	for _, path := range found {
		// Ended processes leave their groups with a delay.
		var err error
		for range 100 {
			if err = os.Remove(path); !errors.Is(err, syscall.EBUSY) {
				break
			}
			time.Sleep(pollInterval)
		}
		if err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}
