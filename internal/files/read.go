package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Read returns the content of the regular file path. It follows symbolic links. A
// file of more than limit bytes is an error.
func Read(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe must not wait for its writer
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	if _, err := statRegular(f, path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return readAll(f, path, limit)
}

// ReadSecret is Read for keys. The file must belong to the caller or to root, no
// other user may have access to it, and path must not be a symbolic link. The layout
// of a mounted Secret (name -> ..data/name, and ..data -> a folder beside it, owned
// by root) may have any mode: the kubelet sets it, and the boundary of the pod
// protects it. Links out of that layout are refused.
func ReadSecret(path string, limit int64) ([]byte, error) {
	data, err := readSecret(path, limit)
	// WriteDir may have replaced the directory that was open.
	if errors.Is(err, fs.ErrNotExist) {
		data, err = readSecret(path, limit)
	}
	for errors.Is(err, errReplaced) { // ends, because each replacement is another write
		data, err = readSecret(path, limit)
	}
	return data, err
}

func readSecret(path string, limit int64) ([]byte, error) {
	s, err := findSecret(path)
	if err != nil {
		return nil, err
	}
	f, err := s.open()
	if err = errors.Join(err, s.in.Close()); err != nil {
		return nil, err
	}
	return readAll(f, path, limit)
}

var errNoOwner = errors.New("its owner is not known on this system")

var errLink = errors.New("it is a symbolic link; copy the key to a file of its own")

// secretFile is the place of a key: a name in an open directory. The name must not
// be a link.
type secretFile struct {
	path    string // as the caller gave it
	in      *os.Root
	name    string
	mounted bool
}

// findSecret finds the key behind path, through the links of a mounted Secret.
// Any other symbolic link is an error.
func findSecret(path string) (*secretFile, error) {
	dir, name := filepath.Split(path)
	s := &secretFile{path: path, name: name}
	root, err := os.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return nil, s.wrap(err)
	}
	s.in = root
	info, err := root.Lstat(name)
	if err == nil {
		if info.Mode()&fs.ModeSymlink == 0 {
			return s, nil
		}
		s.mounted = true
		s.in, err = openMounted(root, name)
	}
	if err != nil {
		return nil, errors.Join(s.wrap(err), root.Close())
	}
	return s, root.Close()
}

// openMounted opens the folder in dir that holds the files of a mounted Secret, if
// name is a link of its layout. The folder must not be a link: it could be anywhere.
func openMounted(dir *os.Root, name string) (*os.Root, error) {
	refused := func(err error) error {
		if Transient(err) {
			return err
		}
		return errLink
	}
	target, err := dir.Readlink(name)
	if err != nil || target != filepath.Join(dataLink, name) {
		return nil, refused(err)
	}
	version, err := dir.Readlink(dataLink)
	if err != nil || !strings.HasPrefix(version, "..") || len(version) == 2 || filepath.Base(version) != version {
		return nil, refused(err)
	}
	named, err := dir.Lstat(version)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil || !named.IsDir() {
		return nil, refused(err)
	}
	in, err := dir.OpenRoot(version)
	if err != nil {
		return nil, err
	}
	if opened, err := in.Stat("."); err != nil || !os.SameFile(named, opened) {
		return nil, errors.Join(errLink, in.Close())
	}
	return in, nil
}

// lstat describes the file itself. A link is an error.
func (s *secretFile) lstat() (fs.FileInfo, error) {
	info, err := s.in.Lstat(s.name)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		err = errLink
	}
	return info, err
}

// open opens the file for its owner alone. os.Root follows links, so it compares the
// opened file with the file of that name.
func (s *secretFile) open() (*os.File, error) {
	named, err := s.lstat()
	if err != nil {
		return nil, s.wrap(err)
	}
	f, err := s.in.OpenFile(s.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, s.wrap(err)
	}
	opened, err := statRegular(f, s.path)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if !os.SameFile(named, opened) {
		return nil, errors.Join(s.wrap(errReplaced), f.Close())
	}
	if err := checkOwner(opened, s.mounted); err != nil {
		return nil, errors.Join(fmt.Errorf("refuse key file %s: %w", s.path, err), f.Close())
	}
	return f, nil
}

// wrap puts the whole path into an error that has only the name.
func (s *secretFile) wrap(err error) error {
	if errors.Is(err, errLink) {
		return fmt.Errorf("refuse key file %s: %w", s.path, err)
	}
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		err = e.Err
	}
	return fmt.Errorf("read key file %s: %w", s.path, err)
}

// statRegular describes f, and refuses anything but a regular file.
func statRegular(f *os.File, path string) (fs.FileInfo, error) {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	return info, nil
}

// readAll reads and closes f.
func readAll(f *os.File, path string, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read file %s: %w", path, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("read file %s: it holds more than the %d bytes allowed", path, limit)
	}
	return data, nil
}
