package files

import (
	"os"

	"golang.org/x/sys/unix"
)

// renameNew renames from to to, both in dir, unless to exists.
func renameNew(dir *os.File, from, to string) error {
	return rename(dir, from, to, unix.RENAME_NOREPLACE)
}

// renameExchange exchanges two names of dir in one step.
func renameExchange(dir *os.File, a, b string) error {
	return rename(dir, a, b, unix.RENAME_EXCHANGE)
}

func rename(dir *os.File, from, to string, flags uint) error {
	fd := int(dir.Fd())
	return os.NewSyscallError("renameat2", unix.Renameat2(fd, from, fd, to, flags))
}
