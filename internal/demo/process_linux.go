package demo

import (
	"errors"
	"io/fs"
	"os"
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

// separate gives the child a process group of its own.
func separate(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

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

// tryLock locks the file for this process, or fails when another has it
// locked. The lock ends when the file is closed.
func tryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// owned says whether the file belongs to the person who runs this process.
func owned(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
