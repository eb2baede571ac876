// Package unixsocket makes the Unix sockets at which the agent serves its Envoy and the applications
// of its pod. A socket stays at its path while the agent runs, and Envoy and the agent prove
// themselves to each other.
package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/serving"
)

// Listener is a socket at a path. Keep keeps it there.
type Listener struct {
	path string
	mode fs.FileMode
	uid  int // whose processes may connect, or anyUser
	log  *slog.Logger

	takenBack atomic.Uint64

	mu     sync.Mutex
	now    bound
	closed bool
}

// anyUser accepts the connections of all users.
const anyUser = -1

// bound is a socket and the file that it made.
type bound struct {
	*net.UnixListener
	file fs.FileInfo
}

// Listen listens on a Unix socket at path that only processes of this user may connect to.
// The socket has mode 0600 in a directory of mode 0700, which is made if missing. A stale
// socket is replaced. A socket in use, and anything that is no socket, is an error. Closing
// the listener removes the socket.
func Listen(path string, log *slog.Logger) (*Listener, error) {
	if err := OwnDirectory(filepath.Dir(path)); err != nil {
		return nil, err
	}
	return ListenInVolume(path, log)
}

// ListenInVolume is Listen for a volume of a pod: its directory keeps its mode and its owner,
// because only containers of the pod can reach it.
func ListenInVolume(path string, log *slog.Logger) (*Listener, error) {
	return listen(&Listener{path: path, mode: 0o600, uid: os.Geteuid(), log: log})
}

// ListenForContainers is ListenInVolume for a volume that containers with other users mount, too:
// each of them may connect.
func ListenForContainers(path string, log *slog.Logger) (*Listener, error) {
	return listen(&Listener{path: path, mode: 0o666, uid: anyUser, log: log})
}

func listen(l *Listener) (*Listener, error) {
	if len(l.path) > serving.MaxSocketPath {
		return nil, fmt.Errorf("socket path %s is %d bytes long, the system allows %d; choose a shorter directory",
			l.path, len(l.path), serving.MaxSocketPath)
	}
	if err := removeStale(l.path); err != nil {
		return nil, err
	}
	var err error
	if l.now, err = bind(l.path, l.mode); err != nil {
		return nil, fmt.Errorf("listen on socket: %w", err)
	}
	return l, nil
}

// bind makes a socket with a mode.
func bind(path string, mode fs.FileMode) (bound, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return bound{}, err
	}
	listener.SetUnlinkOnClose(false) // another socket may be there then
	// Until now, the mode of the directory has protected the socket, and the check of peers.
	err = os.Chmod(path, mode)
	var file fs.FileInfo
	if err == nil {
		file, err = os.Lstat(path)
	}
	if err != nil {
		return bound{}, errors.Join(err, listener.Close())
	}
	return bound{listener, file}, nil
}

func (l *Listener) current() bound {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Addr returns the path of the socket.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Accept returns the next connection of the user, and closes connections of other users.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		from := l.current()
		conn, err := from.AcceptUnix()
		if err != nil {
			if l.current() != from { // it was closed, and another socket took its place
				continue
			}
			return nil, err
		}
		if l.uid == anyUser {
			return conn, nil
		}
		uid, err := peerUID(conn)
		if err == nil && int(uid) == l.uid {
			return conn, nil
		}
		l.log.Warn("refused a connection of another user", "socket", l.path, "uid", uid, "want", l.uid, "error", err)
		conn.Close() //nolint:errcheck // nothing was written
	}
}

// Close ends the socket and removes its file, unless the file is another one by now.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closed = true
	err := l.now.Close()
	if l.inPlace() == nil {
		err = errors.Join(err, os.Remove(l.path))
	}
	return err
}

// OwnDirectory ensures that dir is a directory of mode 0700 that belongs to this user.
func OwnDirectory(dir string) error {
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
