package unixsocket

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/meshctl/meshctl/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline is how long anything may take on a slow machine.
const deadline = 2 * time.Minute

func TestListen(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	listen := func(path string) error {
		l, err := Listen(path, log)
		if err != nil {
			return err
		}
		return l.Close()
	}
	t.Run("modes", func(t *testing.T) {
		path := filepath.Join(harness.ShortDir(t), "d", "s")
		if err := os.Mkdir(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		l, err := Listen(path, log)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		for p, want := range map[string]os.FileMode{path: 0o600 | os.ModeSocket, filepath.Dir(path): 0o700 | os.ModeDir} {
			if info, err := os.Stat(p); err != nil || info.Mode() != want {
				t.Errorf("%s: mode %v, %v, want %v", p, info.Mode(), err, want)
			}
		}
		if err := listen(path); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a second server on a live socket: %v", err)
		}
	})
	t.Run("containers of a pod", func(t *testing.T) {
		path := filepath.Join(harness.ShortDir(t), "s")
		l, err := ListenForContainers(path, log)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o666|os.ModeSocket {
			t.Errorf("mode %v, %v, want 0666", info.Mode(), err)
		}
		if l.uid != anyUser {
			t.Error("only one user may connect")
		}
	})
	t.Run("stale", func(t *testing.T) {
		path := filepath.Join(harness.ShortDir(t), "s")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := listen(path); err != nil {
			t.Errorf("a stale socket is not replaced: %v", err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		dir := harness.ShortDir(t)
		file, link, linkDir := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "linkdir")
		if err := errors.Join(os.WriteFile(file, []byte("x"), 0o600), os.Symlink(file, link), os.Symlink(t.TempDir(), linkDir)); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]string{
			file:                           "not a socket",
			link:                           "not a socket",
			filepath.Join(linkDir, "s"):    "symbolic link",
			filepath.Join(file, "s"):       "not a directory",
			dir + strings.Repeat("/x", 60): "107",
		} {
			if err := listen(path); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", path, err, want)
			}
		}
		if data, err := os.ReadFile(file); string(data) != "x" {
			t.Errorf("the file that is no socket was touched: %v", err)
		}
	})
	t.Run("other user", func(t *testing.T) {
		l, err := Listen(filepath.Join(harness.ShortDir(t), "s"), log)
		if err != nil {
			t.Fatal(err)
		}
		l.uid++ // as if this process belonged to somebody else
		accepted := make(chan error, 1)
		go func() { _, err := l.Accept(); accepted <- err }()
		conn, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetReadDeadline(time.Now().Add(deadline)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection of another user stays open: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-accepted; err == nil {
			t.Error("the connection of another user was accepted")
		}
	})
}
