package files

import "syscall"

// Transient reports whether a file could not be read because a resource, such as
// file descriptors, ran out for now. A program that follows files must then read
// again later: neither an event nor a new modification time will follow.
func Transient(err error) bool {
	return isAny(err, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO, syscall.ESTALE,
		syscall.ENOSPC) // of inotify: no more watches
}
