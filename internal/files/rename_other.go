//go:build !linux

package files

import (
	"os"
	"syscall"
)

// On other systems than Linux the layout of links is used.

func renameNew(*os.File, string, string) error { return syscall.ENOSYS }

func renameExchange(*os.File, string, string) error { return syscall.ENOSYS }
