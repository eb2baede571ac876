package sds

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/serving"
)

// Listen listens on a Unix socket at path that only processes of this user may connect to.
// The socket has mode 0600 in a directory of mode 0700, which is made if missing. A stale
// socket is replaced. A socket in use, and anything that is no socket, is an error. Closing
// the listener removes the socket.
func Listen(path string, log *slog.Logger) (net.Listener, error) {
	if err := ownDirectory(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return ListenInVolume(path, log)
}

// ListenInVolume is Listen for a volume of a pod: its directory keeps its mode and its owner,
// because only containers of the pod can reach it.
func ListenInVolume(path string, log *slog.Logger) (net.Listener, error) {
	listener, err := listen(path, 0o600)
	if err != nil {
		return nil, err
	}
	return &peerListener{UnixListener: listener, uid: uint32(os.Geteuid()), log: log}, nil
}

// ListenForContainers is ListenInVolume for a volume that containers with other users mount, too:
// each of them may connect.
func ListenForContainers(path string, _ *slog.Logger) (net.Listener, error) {
	return listen(path, 0o666)
}

// listen listens on a socket with a mode.
func listen(path string, mode fs.FileMode) (*net.UnixListener, error) {
	if len(path) > serving.MaxSocketPath {
		return nil, fmt.Errorf("socket path %s is %d bytes long, the system allows %d; choose a shorter directory",
			path, len(path), serving.MaxSocketPath)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on socket: %w", err)
	}
	// Until now, the mode of the directory has protected the socket, and the check of peers.
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on socket: %w", err), listener.Close())
	}
	return listener, nil
}

// ownDirectory ensures that dir is a directory of mode 0700 that belongs to this user.
func ownDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for the socket: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("directory of the socket: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("directory of the socket: %s is a symbolic link or a file; name a directory", dir)
	}
	if info.Mode().Perm() != 0o700 {
		if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory needs the bit to enter it
			return fmt.Errorf("directory %s of the socket has mode %04o and cannot be closed to others: %w",
				dir, info.Mode().Perm(), err)
		}
	}
	if err := files.CheckDirectory(dir); err != nil {
		return fmt.Errorf("refuse the directory %s of the socket: %w", dir, err)
	}
	return nil
}

// removeStale removes the socket at path if no process listens on it.
func removeStale(path string) error {
	stale, err := serving.ProbeSocket(path)
	switch {
	case errors.Is(err, serving.ErrNoSocket):
		return fmt.Errorf("%w; remove it or choose another directory", err)
	case errors.Is(err, serving.ErrInUse):
		return fmt.Errorf("%w: is another agent running with the same directory?", err)
	case err != nil || !stale:
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

// peerListener accepts connections of one user and closes all other connections.
type peerListener struct {
	*net.UnixListener
	uid uint32
	log *slog.Logger
}

// Accept returns the next connection of the user.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(conn)
		if err == nil && uid == l.uid {
			return conn, nil
		}
		l.log.Warn("refused a connection of another user", "socket", l.Addr(), "uid", uid, "want", l.uid, "error", err)
		conn.Close() //nolint:errcheck // nothing was written
	}
}
