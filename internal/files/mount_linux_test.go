package files

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// volume mounts a small file system at dir until the test ends.
func volume(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("SKIPPED: this user may not mount a file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// TestWriteDirMountPoint: a mount point, as in containers, gets whole sets.
func TestWriteDirMountPoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	volume(t, dir)
	for _, text := range []string{"first", "second"} {
		if err := WriteDir(dir, generation(text), Options{Force: true}); err != nil {
			t.Fatal(err)
		}
		if got := read(t, dir); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	if beside, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(beside) != 1 {
		t.Errorf("beside the mount point: %v, %v", beside, err)
	}
}

// TestDiskFull: a full disk leaves the old set whole and nothing else.
func TestDiskFull(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "disk")
	volume(t, parent)
	dir := filepath.Join(parent, "set")
	put(t, filepath.Join(dir, "other"), "kept", 0o640)
	if err := WriteDir(dir, generation("old"), Options{}); err != nil {
		t.Fatal(err)
	}
	large := generation("new")
	large[2].Data = bytes.Repeat([]byte("x"), 300<<10)
	if err := WriteDir(dir, large, Options{Force: true}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error is %v", err)
	}
	want(t, dir, "old", false)
}
