package demo

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A run directory is temporary and holds private keys, so the next demo removes the directory
// of a killed demo. A demo keeps a marker file in its directory locked. The kernel releases the
// lock when the demo ends for any reason, and a reused process ID cannot hide that.
const (
	runDirPrefix = "meshctl-"
	markerName   = "demo.lock"
	markerText   = "meshctl demo: this directory may be removed when no process has this file locked\n"
)

// newRunDir makes a run directory below temp. Its marker stays locked until
// lock is closed.
func newRunDir(temp string) (dir string, lock *os.File, err error) {
	if temp, err = filepath.Abs(temp); err != nil {
		return "", nil, err
	}
	if dir, err = os.MkdirTemp(temp, runDirPrefix); err != nil {
		return "", nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("mark the temporary directory: %w", err), os.RemoveAll(dir))
		}
	}()
	// No other demo may find the marker before it is locked.
	unlocked := filepath.Join(dir, "."+markerName)
	lock, err = os.OpenFile(unlocked, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if _, err := lock.WriteString(markerText); err != nil {
		return "", nil, err
	}
	if err := tryLock(lock); err != nil {
		return "", nil, err
	}
	return dir, lock, os.Rename(unlocked, filepath.Join(dir, markerName))
}

// removeStale removes the run directories of ended demos below temp and returns their paths.
// The error names the directories that could not be removed.
func removeStale(temp string) (removed []string, err error) {
	root, err := os.OpenRoot(temp) // so that no link leads out of it
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // nothing is written through it
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), runDirPrefix) {
			continue
		}
		lock := lockStale(root, e.Name())
		if lock == nil {
			continue
		}
		path := filepath.Join(temp, e.Name())
		if err := root.RemoveAll(e.Name()); err != nil {
			errs = append(errs, fmt.Errorf("remove %s, which an earlier demo left: %w", path, err))
		} else {
			removed = append(removed, path)
		}
		lock.Close()
	}
	return removed, errors.Join(errs...)
}

// lockStale returns the locked marker of a run directory whose demo has ended. It returns nil
// for everything else, and in case of doubt.
func lockStale(root *os.Root, name string) *os.File {
	dir, err := root.Lstat(name)
	if err != nil || !dir.IsDir() || dir.Mode().Perm() != 0o700 || !owned(dir) {
		return nil
	}
	path := filepath.Join(name, markerName)
	marker, err := root.Lstat(path)
	if err != nil || !marker.Mode().IsRegular() || marker.Size() != int64(len(markerText)) || !owned(marker) {
		return nil
	}
	f, err := root.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(len(markerText))+1))
	if err != nil || string(text) != markerText || tryLock(f) != nil {
		f.Close()
		return nil
	}
	return f
}
