package process

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// KeepsNetAdmin reports whether programs that this process starts have the capability NET_ADMIN.
func KeepsNetAdmin() bool {
	set := "CapAmb:" // what programs of other users keep
	if os.Geteuid() == 0 {
		set = "CapEff:"
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, set); ok {
			all, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return err == nil && all&(1<<unix.CAP_NET_ADMIN) != 0
		}
	}
	return false
}
