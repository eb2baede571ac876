package files

import (
	"fmt"
	"io/fs"
	"syscall"
)

// Identity tells a file or directory from another one that takes its name. It
// is empty where the system does not tell.
func Identity(info fs.FileInfo) string {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprint(stat.Dev, ":", stat.Ino)
	}
	return ""
}
