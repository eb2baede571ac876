package localtoken

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}
}

func addr(t *testing.T, s string) net.Addr {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestKeepAndRead(t *testing.T) {
	home := t.TempDir()
	dirs := Directories(lookup(map[string]string{"HOME": home}))
	for _, tc := range []struct {
		listener, ask string
		found         bool
	}{
		{"[::]:8080", "127.0.0.1:8080", true},
		{"0.0.0.0:8081", "localhost:8081", true},
		{"127.0.0.1:8082", "localhost:8082", true},
		{"[::1]:8083", "[::1]:8083", true},
		{"[::1]:8084", "localhost:8084", true},
		{"127.0.0.2:8085", "127.0.0.1:8085", false},
		{"127.0.0.1:8086", "127.0.0.1:9086", false},
	} {
		t.Run(tc.listener, func(t *testing.T) {
			token, path, remove, err := Keep(dirs, addr(t, tc.listener), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("file: %v, %v", info, err)
			}
			got, err := Read(dirs, tc.ask)
			if err != nil || token.Is(got) != tc.found || token.Is("") {
				t.Errorf("read %d bytes, %v: found %v, want %v", len(got), err, token.Is(got), tc.found)
			}
			if tc.found && strings.Contains(fmt.Sprintf("%v %+v %#v", token, token, token), got) {
				t.Error("the token prints itself")
			}
			remove()
			if got, err := Read(dirs, tc.ask); got != "" || err != nil {
				t.Errorf("after its end there is %q, %v", got, err)
			}
		})
	}
}

func TestDirectories(t *testing.T) {
	if got := Directories(lookup(map[string]string{"HOME": "relative"})); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	if _, _, _, err := Keep(nil, addr(t, "127.0.0.1:1"), rand.Reader); err == nil || !strings.Contains(err.Error(), "XDG_RUNTIME_DIR") {
		t.Errorf("no directory: %v", err)
	}
	// The first writable directory is used; the newest token is read.
	closed, home := filepath.Join(t.TempDir(), "file"), t.TempDir()
	if err := os.WriteFile(closed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dirs := Directories(lookup(map[string]string{"XDG_RUNTIME_DIR": closed, "HOME": home}))
	token, path, _, err := Keep(dirs, addr(t, "127.0.0.1:1"), rand.Reader)
	if err != nil || !strings.HasPrefix(path, home) {
		t.Fatalf("kept in %s: %v", path, err)
	}
	if got, err := Read(dirs, "127.0.0.1:1"); err != nil || !token.Is(got) {
		t.Errorf("read: %v", err)
	}
}

// TestAnotherTookOver: a control plane that ends does not delete the token of its
// successor on the port.
func TestAnotherTookOver(t *testing.T) {
	dirs := []string{t.TempDir()}
	_, _, remove, err := Keep(dirs, addr(t, "127.0.0.1:1"), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	second, _, _, err := Keep(dirs, addr(t, "127.0.0.1:1"), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	remove()
	if got, err := Read(dirs, "127.0.0.1:1"); err != nil || !second.Is(got) {
		t.Errorf("the second token is gone: %v", err)
	}
}

// TestOthersTokens: a file that other users can write to is not sent.
func TestOthersTokens(t *testing.T) {
	dirs := []string{t.TempDir()}
	_, path, _, err := Keep(dirs, addr(t, "127.0.0.1:1"), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dirs, "127.0.0.1:1"); err == nil {
		t.Errorf("got %d bytes of a file that others can read", len(got))
	}
}

func TestIsLocal(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:80": true, "127.0.0.1:80": true, "127.9.9.9": true, "[::1]:80": true, "[::1]": true,
		"[::ffff:127.0.0.1]:80": true, "": false, ":80": false, "10.0.0.1:80": false, "evil.example": false, "localhost.evil.example:80": false,
		"127.0.0.1.nip.io:80": false, "0.0.0.0:80": false,
	} {
		if got := IsLocal(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}
