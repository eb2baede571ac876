package files

import (
	"errors"
	"slices"
	"syscall"
)

// Transient reports whether a file could not be read for want of something that
// may be there again soon, such as file descriptors. Whoever follows files must
// then look again: no event and no new time of the file tells when.
func Transient(err error) bool {
	number, ok := errors.AsType[syscall.Errno](err)
	return ok && slices.Contains([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO, syscall.ESTALE,
		syscall.ENOSPC, // of inotify: no more watches
	}, number)
}
