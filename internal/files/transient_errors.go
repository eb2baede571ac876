package files

import (
	"fmt"
	"io/fs"
	"syscall"
)

// Identity returns an identifier of a file or directory that differs from the identifier of
// another one which takes its name. It is empty on systems without inodes.
func Identity(info fs.FileInfo) string {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprint(stat.Dev, ":", stat.Ino)
	}
	return ""
}

// Transient reports whether a file could not be read because a resource, such as
// file descriptors, ran out for now. A program that follows files must then read
// again later: neither an event nor a new modification time will follow.
func Transient(err error) bool {
	return isAny(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO, syscall.ESTALE,
		syscall.ENOSPC) // of inotify: no more watches
}
