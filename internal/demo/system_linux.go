package demo

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// supported reports whether the demo can run on this system.
func supported() error { return nil }

// tryLock locks the file for this process, or fails when another process has locked it.
// Closing the file unlocks it.
func tryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// owned reports whether the file belongs to the user of this process.
func owned(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
