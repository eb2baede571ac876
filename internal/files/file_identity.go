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
