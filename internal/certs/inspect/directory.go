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

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/proxyconfig"
)

// directory reads a directory and those below it; the PEM files of each are
// one set. Hidden names are passed over, among them the versions of a mounted
// Secret. Symbolic links are followed to files, never to directories.
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
			if f, found, err = l.entry(name); err != nil || !found {
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
		err = pathError.Err // the place says the rest
	}
	return verify.File{Name: name, Place: place, Unreadable: err.Error()}
}

// entry reads one file of a directory. It is not found when it is of no
// interest; documents and dumps are added at once.
func (l *Loader) entry(full string) (f verify.File, found bool, err error) {
	base := filepath.Base(full)
	data, err := readEntry(full)
	switch {
	case errors.Is(err, errPassOver):
		return f, false, nil
	case err != nil:
		return unreadable(base, full, err), true, nil
	}
	if err := l.count(data); err != nil {
		return f, false, fmt.Errorf("%s: %w", full, err)
	}
	switch kind := formatOf(data); {
	case verify.KnownName(base), kind == pemText:
		if f, err = pemFile(base, full, full, data); err != nil {
			f, err = unreadable(base, full, err), nil
		}
		return f, true, err
	case kind == derBytes:
		if f, err = pemFile(base, full, full, certs.FromDER(data)); err != nil {
			f, err = unreadable(base, full, err), nil
		}
		return f, true, err
	case kind == dumpText:
		err = l.dump(full, data, proxyconfig.ReadSecrets)
	case kind == secretsText:
		err = l.dump(full, data, proxyconfig.ReadSecretsResource)
	case kind == yamlText:
		err = l.documents(full, data)
	}
	if err != nil {
		return unreadable(base, full, err), true, nil
	}
	return f, false, nil
}

// errPassOver is what a file of no interest gives.
var errPassOver = errors.New("passed over")

// readEntry reads a regular file.
func readEntry(name string) ([]byte, error) {
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
		return nil, errPassOver
	case info.Size() > maxOther && !verify.KnownName(filepath.Base(name)) && !slices.Contains(extensions(), filepath.Ext(name)):
		return nil, errPassOver
	}
	return readAll(f, maxFile)
}

// maxOther is the largest file that is looked into although its name promises
// nothing, in bytes.
const maxOther = 1 << 20

func extensions() []string {
	return []string{".pem", ".der", ".crt", ".cer", ".cert", ".key", ".crl", ".yaml", ".yml", ".json"}
}
