package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"
)

// place is a directory that this process has locked against other meshctl processes.
type place struct {
	path string
	root *os.Root
	dir  *os.File // holds the lock
}

// The wait for another process.
const (
	lockWait  = 10 * time.Second
	lockRetry = 20 * time.Millisecond
)

// openPlace opens and locks a directory. It waits up to lockWait for another process.
func openPlace(path string) (*place, error) {
	for range lockWait / lockRetry {
		p, err := tryPlace(path)
		if p != nil || err != nil {
			return p, err
		}
		time.Sleep(lockRetry) //nolint:forbidigo // flock has no timeout
	}
	return nil, fmt.Errorf("another process has been writing to %s for %v; try again when it is done", path, lockWait)
}

// tryPlace returns nil when another process has the lock or has replaced the
// directory in the meantime.
func tryPlace(path string) (_ *place, err error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	dir, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	p := &place{path: path, root: root, dir: dir}
	switch err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, p.close()
	case err != nil && !noLocks(err):
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), p.close())
	}
	mine, err := dir.Stat()
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(mine, there) {
		return nil, p.close()
	}
	return p, nil
}

// noLocks reports whether err means that the file system cannot lock directories.
// The caller must then exclude other processes.
func noLocks(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EBADF, syscall.EINVAL, syscall.ENOLCK, syscall.ENOSYS, syscall.EOPNOTSUPP} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func (p *place) close() error { return errors.Join(p.dir.Close(), p.root.Close()) }

// sync makes the names in the directory survive a crash.
func (p *place) sync() error {
	if err := p.dir.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", p.path, err)
	}
	return nil
}

// entries lists the directory.
func (p *place) entries() ([]fs.DirEntry, error) { return fs.ReadDir(p.root.FS(), ".") }

// sweep removes the files that killed processes left in the directory. The lock
// excludes processes that still need them.
func (p *place) sweep() error {
	return p.remove(func(name string) bool {
		i := strings.LastIndex(name, mark)
		// A dot and a name come before the mark. The versions of a set have no
		// name: they may be in use.
		return i >= 2 && name[0] == '.' && ours(name, name[:i]+mark)
	})
}

// remove removes the entries of this user whose names the function selects.
func (p *place) remove(named func(string) bool) error {
	entries, err := p.entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !named(e.Name()) {
			continue
		}
		info, err := p.root.Lstat(e.Name())
		if err != nil {
			return err
		}
		if uid, _ := owner(info); uid != os.Geteuid() {
			continue
		}
		if err := p.root.RemoveAll(e.Name()); err != nil {
			return err
		}
	}
	return nil
}

// moveNew renames a directory to a name that is free.
func (p *place) moveNew(from, to string) error {
	err := renameNew(p.dir, from, to)
	if !cannotSwap(err) {
		return err
	}
	return p.root.Rename(from, to) // replaces an empty directory at worst
}

func (p *place) exchange(a, b string) error { return renameExchange(p.dir, a, b) }

// owner returns the owner of a file, -1 on systems without owners.
func owner(info fs.FileInfo) (uid, gid int) {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid), int(stat.Gid)
	}
	return -1, -1
}

// writeNew writes a file that does not exist yet and syncs it. No other user has
// access to it before it has its mode.
func writeNew(root *os.Root, name string, f File) error {
	w, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, Secret)
	if err != nil {
		return err
	}
	_, err = w.Write(f.Data)
	if err == nil {
		err = w.Chmod(f.Mode)
	}
	if err == nil {
		err = w.Sync()
	}
	return errors.Join(err, w.Close())
}

// syncIn makes the names in a folder of root survive a crash of the machine.
func syncIn(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
