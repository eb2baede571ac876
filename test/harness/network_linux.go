package harness

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// InOwnNetwork runs this test program again, with more variables in its environment, in a
// network namespace of its own. It returns its exit code. Without root the program gets a
// user namespace, too. Its TestMain must call LoopbackUp.
func InOwnNetwork(env ...string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	inside := exec.Command(self, os.Args[1:]...)
	inside.Env = append(os.Environ(), env...)
	inside.Stdin, inside.Stdout, inside.Stderr = os.Stdin, os.Stdout, os.Stderr
	inside.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		inside.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		inside.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		inside.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if err := inside.Run(); inside.ProcessState == nil {
		return 0, fmt.Errorf("the tests need a network namespace, for root or with user namespaces: %w", err)
	}
	return inside.ProcessState.ExitCode(), nil
}

// envTestNetwork is set in a test process that RunsInOwnNetwork started.
const envTestNetwork = "MESHCTL_TEST_NETWORK"

// RunsInOwnNetwork reports whether a test runs in a network namespace of its own. If not, it runs
// the test again in one, in parallel with other tests, with more variables in its environment, and
// reports its result. Without root or one of the tools it skips the test, and the message names
// what is not tested.
func RunsInOwnNetwork(t *testing.T, what string, tools []string, env ...string) bool {
	t.Helper()
	if os.Getenv(envTestNetwork) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skipf("NOT TESTED: %s, because a network namespace needs root", what)
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("NOT TESTED: %s, because there is no %s: install iproute2 and nftables", what, tool)
		}
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(append(os.Environ(), envTestNetwork+"=1"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("in the network namespace: %v", err)
	}
	t.Logf("%s", out)
	return false
}

// LoopbackUp makes the addresses of the loopback interface usable in a new network namespace.
func LoopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}
