package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
	switch err := lock(dir, path); {
	case errors.Is(err, errLocked), errors.Is(err, errReplaced):
		return nil, p.close()
	case err != nil:
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *place) close() error { return errors.Join(p.dir.Close(), p.root.Close()) }

// sync makes the names in the directory survive a crash.
func (p *place) sync() error {
	if err := p.dir.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", p.path, err)
	}
	return nil
}

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

// fill writes the files of a set into a new folder of the directory, and links the
// other files of the folder old there, if it is not empty.
func (p *place) fill(folder string, set []File, old string) error {
	for _, f := range set {
		if err := writeNew(p.root, filepath.Join(folder, f.Name), f); err != nil {
			return err
		}
	}
	if old == "" {
		return nil
	}
	kept, err := fs.ReadDir(p.root.FS(), old)
	if err != nil {
		return err
	}
	for _, e := range kept {
		if has(set, e.Name()) {
			continue
		}
		if err := p.root.Link(filepath.Join(old, e.Name()), filepath.Join(folder, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// syncIn makes the names in a folder of root survive a crash of the machine.
func syncIn(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
