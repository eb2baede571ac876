package unixsocket

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// TestKeep: the socket comes back to its path after it was removed, or replaced by a file, a
// link or a socket of somebody else. Open connections go on, and Close leaves no file.
func TestKeep(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"removed": os.Remove,
		"directory removed": func(path string) error {
			return os.RemoveAll(filepath.Dir(path))
		},
		"a file": func(path string) error {
			_ = os.Remove(path)
			return os.WriteFile(path, []byte("x"), 0o600)
		},
		"a link to it": func(path string) error {
			if err := os.Rename(path, path+"2"); err != nil {
				return err
			}
			return os.Symlink(path+"2", path)
		},
		"another socket": func(path string) error {
			_ = os.Remove(path)
			other, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err == nil {
				other.SetUnlinkOnClose(false)
				err = other.Close()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log harness.LogBuffer
			path := filepath.Join(harness.ShortDir(t), "d", "s")
			l, err := Listen(path, slog.New(slog.NewTextHandler(&log, nil)))
			check(t, err)
			ctx, stop := context.WithCancel(t.Context())
			kept, served := make(chan error, 1), make(chan error, 1)
			go func() { kept <- l.Keep(ctx) }()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						served <- nil
						return
					}
					go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
				}
			}()
			open, err := net.Dial("unix", path)
			check(t, err)
			echo(t, open)
			check(t, spoil(path))
			harness.Eventually(t, deadline, "the socket at its path", func() error {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.inPlace()
			})
			if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600|os.ModeSocket {
				t.Errorf("mode %v, %v, want a socket of mode 0600", info.Mode(), err)
			}
			next, err := net.Dial("unix", path)
			check(t, err)
			echo(t, next)
			echo(t, open)
			harness.Eventually(t, deadline, "a report", func() error {
				if l.TakenBack() != 1 || strings.Count(log.String(), "the agent took it back") != 1 || !strings.Contains(log.String(), "socket="+path) {
					return os.ErrNotExist
				}
				return nil
			})
			stop()
			check(t, <-kept)
			check(t, l.Close())
			check(t, <-served)
			check(t, open.Close())
			check(t, next.Close())
			entries, err := os.ReadDir(filepath.Dir(path))
			check(t, err)
			for _, e := range entries {
				if e.Name() != "s2" {
					t.Errorf("left behind: %s", e.Name())
				}
			}
		})
	}
}

// TestCloseLeavesOthers: what took the place of the socket stays when the listener ends.
func TestCloseLeavesOthers(t *testing.T) {
	path := filepath.Join(harness.ShortDir(t), "s")
	l, err := Listen(path, slog.New(slog.DiscardHandler))
	check(t, err)
	check(t, os.Remove(path))
	check(t, os.WriteFile(path, []byte("x"), 0o600))
	check(t, l.Close())
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

// TestKeepReportsOnce: a place that cannot be taken back is reported once.
func TestKeepReportsOnce(t *testing.T) {
	var log harness.LogBuffer
	path := filepath.Join(harness.ShortDir(t), "s")
	l, err := Listen(path, slog.New(slog.NewTextHandler(&log, nil)))
	check(t, err)
	ctx, stop := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- l.Keep(ctx) }()
	check(t, os.Remove(path))
	check(t, os.Mkdir(path, 0o700))
	harness.Eventually(t, deadline, "a report", func() error {
		if !strings.Contains(log.String(), "cannot be put back") {
			return os.ErrNotExist
		}
		return nil
	})
	check(t, os.Remove(path))
	harness.Eventually(t, deadline, "the socket at its path", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.inPlace()
	})
	stop()
	check(t, <-kept)
	check(t, l.Close())
	if n := strings.Count(log.String(), "cannot be put back"); n != 1 {
		t.Errorf("reported %d times", n)
	}
}

func echo(t *testing.T, conn net.Conn) {
	t.Helper()
	_, err := conn.Write([]byte("a"))
	check(t, err)
	_, err = io.ReadFull(conn, make([]byte, 1))
	check(t, err)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
