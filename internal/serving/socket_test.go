package serving

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestProbeSocket: only a stale socket may be replaced.
func TestProbeSocket(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at(name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		return l
	}
	live := listen("live")
	defer func() { _ = live.Close() }()
	if err := errors.Join(listen("stale").Close(), os.WriteFile(at("file"), nil, 0o600), os.Symlink(at("stale"), at("link"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		stale bool
		err   error
	}{
		"none": {}, "stale": {stale: true}, "live": {err: ErrInUse}, "file": {err: ErrNoSocket}, "link": {err: ErrNoSocket}, ".": {err: ErrNoSocket},
	} {
		if stale, err := ProbeSocket(at(name)); stale != want.stale || !errors.Is(err, want.err) {
			t.Errorf("%s: %t, %v, want %t, %v", name, stale, err, want.stale, want.err)
		}
	}
	if stale, err := ProbeSocket(at("file/below")); stale || err == nil {
		t.Errorf("below a file: %t, %v, want an error", stale, err)
	}
}

// TestIsServed: a socket, or a link to one, is served, and only nothing at all is no error
// otherwise.
func TestIsServed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at(name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		return l
	}
	live := listen("live")
	defer func() { _ = live.Close() }()
	if err := errors.Join(listen("stale").Close(), os.WriteFile(at("file"), nil, 0o600), os.Symlink("live", at("link")), os.Symlink(at("link"), at("link to a link")),
		os.Symlink("stale", at("link to a stale one")), os.Symlink("none", at("link to nothing")), os.Symlink("loop", at("loop"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		served bool
		err    string
	}{
		"none": {}, "live": {served: true}, "link": {served: true}, "link to a link": {served: true},
		"stale": {err: "no process serves it"}, "link to a stale one": {err: "no process serves it"}, "file": {err: "not a socket"},
		"link to nothing": {err: "no such file"}, "loop": {err: "too many links"}, ".": {err: "not a socket"}, "file/below": {err: "not a directory"},
	} {
		served, err := IsServed(at(name))
		if served != want.served || (want.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want.err) {
			t.Errorf("%s: %t, %v, want %t, %q", name, served, err, want.served, want.err)
		}
	}
}
