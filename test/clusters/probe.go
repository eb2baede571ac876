package clusters

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// tryNode returns an error if this machine does not permit what a node does, as in a
// container without privileges.
func tryNode() error {
	n := &node{Cgroup: fmt.Sprintf("/meshctl-%d-probe", os.Getpid()), Probe: true}
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), nodeVar+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: nodeNamespaces}
	if out, failed := cmd.CombinedOutput(); failed != nil {
		err = fmt.Errorf("this machine permits no nodes: %w: %s", failed, strings.TrimSpace(string(out)))
	}
	return errors.Join(err, n.removeCgroups())
}

// probe does in the namespaces of a node what needs rights. The kernel removes all of it
// when the process ends.
func (n *node) probe() error {
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
	const rules = `table ip probe {
	chain out { type nat hook postrouting priority srcnat; ip saddr 192.0.2.1 masquerade; }
}`
	return errors.Join(
		runIn("", "ip", "link", "add", "probe", "type", "bridge"),
		runIn("", "ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"),
		runIn(rules, "nft", "-f", "-"))
}
