package process

import (
	"io"
	"os"
)

// reopenable returns a standard output that a process can open again as /dev/stdout,
// as Envoy does for access logs. Linux does not open sockets, such as the one that
// systemd passes, so these get a pipe in between.
func reopenable(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeSocket != 0 {
			return struct{ io.Writer }{f}
		}
	}
	return w
}
