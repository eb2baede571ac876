package serving

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
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

// IsServed reports whether a process serves the Unix socket at path, which may be a symbolic link to
// it. It returns false without an error only if there is nothing at path.
func IsServed(path string) (bool, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	socket, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false, fmt.Errorf("socket %s: %w", path, err)
	}
	switch _, err := ProbeSocket(socket); {
	case errors.Is(err, ErrInUse):
		return true, nil
	case err != nil:
		return false, err
	}
	return false, fmt.Errorf("socket %s: no process serves it", path)
}
