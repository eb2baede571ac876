package demo

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStaleRunDirs(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	newDir := func() (string, *os.File) {
		t.Helper()
		dir, lock, err := newRunDir(temp)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "key.pem"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return dir, lock
	}
	stale := func(change func(dir string) error) string {
		t.Helper()
		dir, lock := newDir()
		lock.Close()
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	live, lock := newDir()
	defer lock.Close()
	gone := stale(func(string) error { return nil })
	elsewhere, other := filepath.Join(t.TempDir(), "elsewhere"), filepath.Join(temp, "other")
	stale(func(dir string) error { return os.Rename(dir, other) })
	kept := []string{
		live,
		stale(func(dir string) error { return os.Remove(filepath.Join(dir, markerName)) }),
		stale(func(dir string) error { return os.Chmod(dir, 0o755) }),
		stale(func(dir string) error { return os.WriteFile(filepath.Join(dir, markerName), []byte("mine"), 0o600) }),
		stale(func(dir string) error {
			return errors.Join(os.Rename(dir, elsewhere), os.Symlink(elsewhere, dir))
		}),
		filepath.Join(elsewhere, "key.pem"),
		other,
	}

	removed, err := removeStale(temp)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{gone}, removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
	if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", gone, err)
	}
	for _, path := range kept {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}
