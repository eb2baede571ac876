package demo

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// supported says whether the demo can run on this system.
func supported() error { return nil }

// isolate gives the child a process group of its own, so that Ctrl-C reaches
// the demo alone, which then ends its children in order. Should the thread
// that starts the child end, because the demo was killed, the child is told
// to end.
func isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// waitExited returns when the child has ended and before it is reaped: until
// then its id and that of its group belong to nobody else.
func waitExited(pid int) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// terminate asks the child to end.
func terminate(pid int) { _ = syscall.Kill(pid, syscall.SIGTERM) }

// killGroup ends the child and what it started at once.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
