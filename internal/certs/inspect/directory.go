package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/meshctl/meshctl/internal/certs/verify"
)

// directory reads a directory and its subdirectories. The PEM files of each are
// one set. It ignores hidden names, such as the versions of a mounted Secret, and
// follows symbolic links to files but not to directories.
func (l *Loader) directory(dir string) error {
	sets := map[string][]verify.File{}
	var order []string
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if name == dir {
			return err
		}
		if strings.HasPrefix(e.Name(), ".") {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		var f verify.File
		switch {
		case err != nil:
			f = unreadable(e.Name(), name, err)
		case e.IsDir():
			if below, err := filepath.Rel(dir, name); err != nil || strings.Count(below, string(filepath.Separator)) >= maxDepth {
				return fmt.Errorf("%s: directories nest more than %d deep", name, maxDepth)
			}
			return nil
		default:
			if l.filesLeft--; l.filesLeft < 0 {
				return fmt.Errorf("%s: the directories hold more than %d files in all", dir, maxFiles)
			}
			var found bool
			if f, found, err = l.file(name); err != nil || !found {
				return err
			}
		}
		at := filepath.Dir(name)
		if sets[at] == nil {
			order = append(order, at)
		}
		sets[at] = append(sets[at], f)
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(order)
	for _, at := range order {
		if err := l.add(verify.Arrange(at, sets[at])); err != nil {
			return err
		}
	}
	return nil
}

func unreadable(name, place string, err error) verify.File {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathError.Err // place has the path
	}
	return verify.File{Name: name, Place: place, Unreadable: err.Error()}
}

// file reads one file of a directory. found is false for a file of no interest and
// for documents and dumps, whose contents are already added.
func (l *Loader) file(path string) (f verify.File, found bool, err error) {
	base := filepath.Base(path)
	data, err := readRegular(path)
	switch {
	case errors.Is(err, errIgnored):
		return f, false, nil
	case err != nil:
		return unreadable(base, path, err), true, nil
	}
	if err := l.count(data); err != nil {
		return f, false, fmt.Errorf("%s: %w", path, err)
	}
	if verify.KnownName(base) { // must be PEM
		f, err = pemFile(base, path, path, data)
		found = true
	} else {
		f, found, err = l.parse(base, path, path, data)
	}
	if err != nil {
		return unreadable(base, path, err), true, nil
	}
	return f, found, nil
}

// errIgnored reports a file of no interest.
var errIgnored = errors.New("ignored")

// readRegular reads a regular file. A large file counts only if its name is known
// or has a known extension.
func readRegular(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errIgnored
	case info.Size() > maxOther && !verify.KnownName(filepath.Base(name)) && !slices.Contains(extensions(), filepath.Ext(name)):
		return nil, errIgnored
	}
	return readAll(f, maxFile)
}

// maxOther is the size limit, in bytes, for files without a known name or
// extension.
const maxOther = 1 << 20

func extensions() []string {
	return []string{".pem", ".der", ".crt", ".cer", ".cert", ".key", ".crl", ".yaml", ".yml", ".json"}
}
