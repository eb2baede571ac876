package serving

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// MaxSocketPath is the maximum length of a Unix socket's path in bytes, without the
// terminating zero.
const MaxSocketPath = 107

// The errors of ProbeSocket.
var (
	ErrNoSocket = errors.New("exists and is not a socket")
	ErrInUse    = errors.New("is in use")
)

// ProbeSocket reports whether there is a stale socket at path, which no process serves
// and which may be replaced. It returns ErrInUse for a socket in use, and ErrNoSocket
// for any other file. It does not wait.
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
		return false, fmt.Errorf("connect to socket %s to see whether it is in use: %w", path, err)
	}
	return true, nil
}
