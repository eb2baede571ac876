// Package files writes files that are whole or absent, never overwritten by
// accident and never readable by others by accident, and reads files with a
// limit. It knows nothing of what the files hold.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Modes of what is written: Secret is for keys and tokens, Public for the
// rest.
const (
	Secret fs.FileMode = 0o600
	Public fs.FileMode = 0o644

	dirMode fs.FileMode = 0o700
)

// File is one file to write.
type File struct {
	// Name is relative to the directory; for WriteAll it may have folders.
	Name string
	Data []byte
	Mode fs.FileMode
}

// Options of WriteDir and WriteDirs.
type Options struct {
	// Force replaces files that exist.
	Force bool
}

// Write replaces or creates the file path with data. A reader sees the old
// file or the new one, also after a crash; what a crashed call left is removed
// by the next one. The folder must exist. What is there already must be a
// regular file: a symbolic link is refused, not followed.
func Write(path string, data []byte, mode fs.FileMode) (err error) {
	if _, err := occupied(path); err != nil {
		return err
	}
	p, err := openPlace(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, p.close()) }()
	name := filepath.Base(path)
	if err := p.sweep(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	temp := "." + name + mark + token()
	err = writeNew(p.root, temp, File{Data: data, Mode: mode})
	if err == nil {
		err = p.root.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), p.root.RemoveAll(temp))
	}
	return p.sync()
}

// WriteAll writes new files below dir, making folders (mode 0700) as needed,
// one after the other: unlike WriteDir it has no moment in which all come to
// exist, and it disturbs nobody who watches dir. When one cannot be written
// none stays. Nothing that exists is touched: the error names it and wraps
// fs.ErrExist.
func WriteAll(dir string, files []File) (err error) {
	if err := checkTargets(dir, files); err != nil {
		return err
	}

	var undo []string // files to be removed when a later one fails
	defer func() {
		if err != nil {
			for _, path := range undo {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}()
	temps := make([]string, len(files))
	defer func() {
		for _, temp := range temps {
			if temp != "" {
				// A temporary file that was renamed is gone already.
				if rerr := os.Remove(temp); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
					err = errors.Join(err, rerr)
				}
			}
		}
	}()
	for i, f := range files {
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		if temps[i], err = writeTemp(path, f.Data, f.Mode); err != nil {
			return err
		}
	}
	for i, f := range files {
		path := filepath.Join(dir, f.Name)
		if err := publish(temps[i], path); err != nil {
			return err
		}
		undo = append(undo, path)
	}
	for _, f := range files {
		if err := syncDir(filepath.Dir(filepath.Join(dir, f.Name))); err != nil {
			return err
		}
	}
	return nil
}

// checkTargets refuses names outside dir and files that may not be written.
func checkTargets(dir string, files []File) error {
	for _, f := range files {
		if !filepath.IsLocal(f.Name) {
			return fmt.Errorf("write %s: %q is not a name below it", dir, f.Name)
		}
		path := filepath.Join(dir, f.Name)
		if exists, err := occupied(path); err != nil {
			return err
		} else if exists {
			return existsError(path)
		}
	}
	return nil
}

// publish gives the finished file temp its final name. It links: unlike a
// rename, a link never replaces a file that another process made in the
// meantime.
func publish(temp, path string) error {
	switch err := os.Link(temp, path); {
	case errors.Is(err, fs.ErrExist):
		return existsError(path)
	case err != nil:
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func existsError(path string) error {
	return fmt.Errorf("%s: %w; use --force to overwrite it", path, fs.ErrExist)
}

// occupied reports whether path names a regular file. It is an error when it
// names anything else.
func occupied(path string) (bool, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("write %s: %w", path, err)
	case info.Mode()&fs.ModeSymlink != 0:
		return false, fmt.Errorf("write %s: it is a symbolic link; remove it or write to the file it points to", path)
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("write %s: something that is not a regular file is in the way", path)
	}
	return true, nil
}

// writeTemp writes a finished file beside path and returns its name.
// CreateTemp opens it exclusively with mode 0600, so a secret is never open
// to others, not even before it gets its mode.
func writeTemp(path string, data []byte, mode fs.FileMode) (temp string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return f.Name(), nil
}

// syncDir makes the names in dir survive a crash.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
