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
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock %s: another process of meshctl is at work; try again when it is done", path), f.Close())
		case err != nil && !noLocks(err):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		// The previous owner of the lock may have removed this file.
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if there, err := os.Lstat(path); err != nil || !os.SameFile(mine, there) {
			if err := f.Close(); err != nil {
				return nil, fmt.Errorf("lock %s: %w", path, err)
			}
			continue
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
