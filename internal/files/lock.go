package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// Lock locks the file path against other meshctl processes until unlock is called
// or this process ends. It makes the file, and unlock removes it. It is an error when
// another process has the lock.
func Lock(path string) (unlock func() error, err error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, Secret)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		switch err := lock(f, path); {
		case errors.Is(err, errReplaced): // the previous owner of the lock removed it
			f.Close()
			continue
		case err != nil:
			return nil, errors.Join(err, f.Close())
		}
		return func() error {
			err := os.Remove(path)
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return errors.Join(err, f.Close())
		}, nil
	}
}

// Errors of lock and of reading keys.
var (
	errLocked   = errors.New("another process of meshctl is at work; try again when it is done")
	errReplaced = errors.New("it was replaced")
)

// lock locks f, which was opened as path, until it is closed. It returns errLocked when
// another process has the lock, and errReplaced when path is no longer f. A file system
// without locks is not an error: the caller must then exclude other processes.
func lock(f *os.File, path string) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return fmt.Errorf("lock %s: %w", path, errLocked)
	case err != nil && !isAny(err, syscall.EBADF, syscall.EINVAL, syscall.ENOLCK, syscall.ENOSYS, syscall.EOPNOTSUPP):
		return fmt.Errorf("lock %s: %w", path, err)
	}
	mine, err := f.Stat()
	if err != nil {
		return fmt.Errorf("lock %s: %w", path, err)
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(mine, there) {
		return fmt.Errorf("lock %s: %w", path, errReplaced)
	}
	return nil
}
