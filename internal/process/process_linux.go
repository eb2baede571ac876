package process

import (
	"cmp"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

func attributes(death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: cmp.Or(death, syscall.SIGKILL)}
}

// awaitExit returns when the process has ended, before it is reaped: until then no other
// process gets its ID or the ID of its group.
func awaitExit(pid int) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
