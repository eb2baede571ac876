package clusters

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// probe is the value of nodeVar in a process that only tries what a node needs.
const probe = "probe"

// tryNode returns an error if this machine does not permit what a node does, as in a
// container without privileges.
func tryNode() error {
	group := fmt.Sprintf("/meshctl-probe-%d", os.Getpid())
	for _, dir := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue
		}
		if err := os.Mkdir(dir+group, 0o755); err != nil {
			return fmt.Errorf("control groups: %w", err)
		}
		if err := os.Remove(dir + group); err != nil {
			return fmt.Errorf("control groups: %w", err)
		}
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), nodeVar+"="+probe)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: nodeNamespaces}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("namespaces: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// runProbe does in the namespaces of a node what needs rights. The kernel removes all of
// it when the process ends.
func runProbe() error {
	var n node
	if err := n.mounts(); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	dir, err := os.MkdirTemp("/run", "")
	if err != nil {
		return err
	}
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", dir)
	if err := syscall.Mount("overlay", filepath.Join(dir, "merged"), "overlay", 0, layers); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	return errors.Join(
		runIn("", "ip", "link", "add", "probe", "type", "bridge"),
		runIn("", "ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"),
		runIn("table ip probe { chain c { type nat hook postrouting priority srcnat; ip saddr 192.0.2.1 masquerade; } }", "nft", "-f", "-"))
}
