package process

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseMemory returns memory to the system: garbage, and the pages of the program itself, of which the
// kernel maps those again that are used. Most are used only at the start.
func ReleaseMemory() {
	debug.FreeOSMemory()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	for _, m := range unchangedMappings(maps, program) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
	}
}

type mapping struct{ start, end uintptr }

// unchangedMappings returns the mappings of a file in the text of /proc/PID/smaps that are read-only and
// equal the file: their pages can be read again.
func unchangedMappings(maps []byte, file string) []mapping {
	var (
		out     []mapping
		current mapping
		of      bool // current is a read-only mapping of the file
	)
	lines := bufio.NewScanner(bytes.NewReader(maps))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 5 && strings.Contains(fields[0], "-"):
			var m mapping
			_, err := fmt.Sscanf(fields[0], "%x-%x", &m.start, &m.end)
			current, of = m, err == nil && len(fields) == 6 && fields[5] == file && !strings.Contains(fields[1], "w")
		case of && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0":
			out = append(out, current)
		}
	}
	return out
}
