// Package files writes files whole or not at all, and reads files up to a limit. It
// overwrites no file without being asked and keeps secrets private to their owner.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Modes of files: Secret for keys and tokens, Public for all others.
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

// Write replaces or creates the file path. A reader sees the old file or the new
// file, also after a crash; the next call removes what a crashed call left. The
// folder must exist. Anything but a regular file at path is an error; symbolic
// links are not followed.
func Write(path string, data []byte, mode fs.FileMode) error {
	if _, err := occupied(path); err != nil {
		return err
	}
	return writeFile(path, data, mode, true)
}

// WriteAll writes new files below dir, one after the other, and makes folders (mode
// 0700) as needed. Unlike WriteDir it never replaces or renames a folder, so it does
// not disturb programs that watch dir. If one file cannot be written, none stays.
// Nothing that exists is touched: the error names the file and wraps fs.ErrExist.
func WriteAll(dir string, files []File) (err error) {
	if err := checkTargets(dir, files); err != nil {
		return err
	}
	var written []string
	defer func() {
		if err != nil {
			for _, path := range written {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}()
	for _, f := range files {
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		if err := writeFile(path, f.Data, f.Mode, false); err != nil {
			return err
		}
		written = append(written, path)
	}
	return nil
}

// writeFile writes a file under another name and then gives it its own name. A file
// that exists is an error unless replace is set.
func writeFile(path string, data []byte, mode fs.FileMode, replace bool) (err error) {
	p, err := openPlace(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.sweep(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	name := filepath.Base(path)
	temp := "." + name + mark + token()
	show := p.root.Link // which, unlike Rename, never replaces a file
	if replace {
		show = p.root.Rename
	}
	err = writeNew(p.root, temp, File{Data: data, Mode: mode})
	if err == nil {
		err = show(temp, name)
	}
	if errors.Is(err, fs.ErrExist) {
		err = existsError(path)
	} else if err != nil {
		err = fmt.Errorf("write %s: %w", path, err)
	}
	if err != nil || !replace {
		err = errors.Join(err, p.root.RemoveAll(temp))
	}
	return errors.Join(err, p.sync())
}

// checkTargets refuses names outside dir and files that exist.
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

func existsError(path string) error {
	return fmt.Errorf("%s: %w; use --force to overwrite it", path, fs.ErrExist)
}

// occupied reports whether path is a regular file. Anything else at path is an
// error.
func occupied(path string) (bool, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("write %s: %w", path, err)
	case info.Mode()&fs.ModeSymlink != 0:
		return false, linkError(path)
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("write %s: something that is not a regular file is in the way", path)
	}
	return true, nil
}
