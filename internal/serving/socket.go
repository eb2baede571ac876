package serving

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// MaxSocketPath is the longest path of a Unix socket in bytes, without the
// terminating zero.
const MaxSocketPath = 107

// Reasons why a socket cannot be created, for callers that know a fix.
var (
	ErrNoSocket = errors.New("exists and is not a socket")
	ErrInUse    = errors.New("is in use")
)

// ProbeSocket reports whether there is a socket at path that nobody answers on, which
// may be replaced. A socket in use is an ErrInUse, anything else an ErrNoSocket;
// with nothing at path it returns false. It does not wait.
func ProbeSocket(path string) (stale bool, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return false, fmt.Errorf("%s %w", path, ErrNoSocket)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	switch {
	case err == nil:
		return false, errors.Join(fmt.Errorf("socket %s %w", path, ErrInUse), conn.Close())
	case !errors.Is(err, syscall.ECONNREFUSED):
		return false, fmt.Errorf("socket %s is there and does not tell whether it is in use: %w", path, err)
	}
	return true, nil
}
