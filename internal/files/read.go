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

// Read returns the content of the regular file path, following symbolic
// links. A file of more than limit bytes is an error.
func Read(path string, limit int64) ([]byte, error) {
	f, err := openRegular(path, 0)
	if err != nil {
		return nil, err
	}
	return readAll(f, path, limit)
}

// ReadSecret is Read for keys: the file must belong to the caller or to root,
// nobody else may read or write it, and path must not be a symbolic link. The
// layout of a mounted Secret (name -> ..data/name and ..data -> a folder
// beside it, owned by root) is accepted with any mode, for the kubelet sets
// it and the pod's own boundary guards it.
func ReadSecret(path string, limit int64) ([]byte, error) {
	real, mounted, err := resolveMounted(path)
	if errors.Is(err, errLink) {
		return nil, fmt.Errorf("refuse key file %s: %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	f, err := openRegular(real, syscall.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = checkOwner(info, mounted)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("refuse key file %s: %w", path, err), f.Close())
	}
	return readAll(f, path, limit)
}

// CheckSecret says why ReadSecret would refuse the key file path for who may
// get at it, nil if it would not.
func CheckSecret(path string) error {
	real, mounted, err := resolveMounted(path)
	if err != nil {
		return err
	}
	info, err := os.Lstat(real)
	if err != nil {
		return err
	}
	return checkOwner(info, mounted)
}

func checkOwner(info fs.FileInfo, mounted bool) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("its owner is not known on this system")
	}
	return checkSecret(info.Mode(), int(stat.Uid), os.Geteuid(), mounted)
}

var errLink = errors.New("it is a symbolic link; copy the key to a file of its own")

// resolveMounted returns the file behind path when path has the layout of a
// mounted Secret, else path itself. Any other symbolic link is an error.
func resolveMounted(path string) (real string, mounted bool, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", false, fmt.Errorf("read key file: %w", err)
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		return path, false, nil
	}
	const data = "..data"
	dir, name := filepath.Split(path)
	if target, err := os.Readlink(path); err == nil && target == filepath.Join(data, name) {
		version, err := os.Readlink(filepath.Join(dir, data))
		if err == nil && strings.HasPrefix(version, "..") && len(version) > 2 && filepath.Base(version) == version {
			return filepath.Join(dir, version, name), true, nil
		}
	}
	return "", false, errLink
}

// checkSecret judges the mode and owner of a key file.
func checkSecret(mode fs.FileMode, owner, self int, mounted bool) error {
	const root = 0
	switch {
	case mounted && owner == root:
		return nil
	case owner != self && owner != root:
		return fmt.Errorf("it belongs to user %d, not to user %d who reads it; chown it", owner, self)
	case mode.Perm()&0o077 != 0:
		return fmt.Errorf("its mode %04o lets others at it; run chmod 600 on it", mode.Perm())
	}
	return nil
}

// openRegular opens a regular file for reading. It does not wait for the
// writer of a named pipe.
func openRegular(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|flag, 0)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read file: %w", err), f.Close())
	}
	return f, nil
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
