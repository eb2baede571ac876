package files

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Dir is a set of files that belong together, in a directory of their own.
type Dir struct {
	// Name is one name below the parent of WriteDirs.
	Name string
	// Files have plain names. Other files of the directory stay.
	Files []File
}

// WriteDir writes a set of files into the directory path as a whole: a reader sees
// all of the old set or all of the new set, also after a crash at any moment, and
// the next call removes what the crashed call left. A missing directory is made
// with mode 0700.
//
// The new directory is made beside the old one and exchanged with it, so a watcher
// of the old directory itself must open path again. A directory that cannot be
// exchanged (it has folders, is a mount point or the working directory, or its file
// system cannot do it) gets the layout of a mounted Secret: each name links to
// ..data/name, and ..data links to the folder with the current set. That layout
// alone would do, but would turn plain directories into links, which kubectl's
// --from-file=DIR ignores.
//
// Without Force nothing that exists is touched: the error names the file and wraps
// fs.ErrExist. Symbolic links are never followed: path and the names in it must not
// be links, except for the links of that layout.
func WriteDir(path string, all []File, opts Options) error {
	path = filepath.Clean(path)
	if base := filepath.Base(path); base == "." || base == ".." {
		abs, err := filepath.Abs(path)
		if err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		path = abs
	}
	return writeDirs(filepath.Dir(path), []Dir{{Name: filepath.Base(path), Files: all}}, opts)
}

// WriteDirs is WriteDir for several directories below parent, which must not be a
// symbolic link. Either all are written or none. A crash may leave some of them old
// and some new, each of them whole.
func WriteDirs(parent string, dirs []Dir, opts Options) error {
	if info, err := os.Lstat(parent); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return linkError(parent)
	}
	return writeDirs(parent, dirs, opts)
}

// pending is a set that is written but not yet visible.
type pending interface {
	commit() error // shows the new set
	undo() error   // shows the old set again
	finish() error // removes the set that is not visible
}

func writeDirs(parent string, dirs []Dir, opts Options) (err error) {
	if err := checkNames(parent, dirs); err != nil {
		return err
	}
	if err := os.MkdirAll(parent, dirMode); err != nil {
		return fmt.Errorf("write %s: %w", parent, err)
	}
	p, err := openPlace(parent)
	if err != nil {
		return fmt.Errorf("write %s: %w", parent, err)
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.sweep(); err != nil {
		return fmt.Errorf("write %s: %w", parent, err)
	}

	type staged struct {
		pending
		path string
	}
	var sets []staged
	defer func() {
		for _, s := range sets {
			err = errors.Join(err, s.finish())
		}
	}()
	for _, d := range dirs {
		s, serr := p.stage(d, opts)
		if s != nil {
			sets = append(sets, staged{s, filepath.Join(parent, d.Name)})
		}
		if serr != nil {
			return serr
		}
	}
	for i, s := range sets {
		if err := s.commit(); err != nil {
			err = fmt.Errorf("write %s: %w", s.path, err)
			for _, done := range slices.Backward(sets[:i]) {
				err = errors.Join(err, done.undo())
			}
			return err
		}
	}
	return p.sync()
}

func checkNames(parent string, dirs []Dir) error {
	plain := func(s string) bool { return filepath.IsLocal(s) && s != "." && !strings.ContainsRune(s, '/') }
	for _, d := range dirs {
		if !plain(d.Name) {
			return fmt.Errorf("write %s: %q is not a name below it", parent, d.Name)
		}
		for i, f := range d.Files {
			if !plain(f.Name) || strings.HasPrefix(f.Name, "..") {
				return fmt.Errorf("write %s: %q is not the name of a file in it", filepath.Join(parent, d.Name), f.Name)
			}
			if slices.ContainsFunc(d.Files[:i], func(o File) bool { return o.Name == f.Name }) {
				return fmt.Errorf("write %s: %w", filepath.Join(parent, d.Name), existsError(f.Name))
			}
		}
	}
	return nil
}

// stage writes d without showing it. The caller must finish the result, also one
// that comes with an error.
func (p *place) stage(d Dir, opts Options) (_ pending, err error) {
	path := filepath.Join(p.path, d.Name)
	wrap := func(err error) error {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
		return err
	}
	info, err := p.root.Lstat(d.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s, err := p.stageSwap(d, nil)
		return s, wrap(err)
	case err != nil:
		return nil, wrap(err)
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, linkError(path)
	case !info.IsDir():
		return nil, wrap(errors.New("something that is not a directory is in the way"))
	}
	old, err := openPlace(path)
	if err != nil {
		return nil, wrap(err)
	}
	linked, err := old.inUse(d.Files, opts)
	if err != nil {
		return nil, errors.Join(err, old.close())
	}
	if err := old.sweep(); err != nil {
		return nil, errors.Join(wrap(err), old.close())
	}
	swappable := false
	if !linked {
		if swappable, err = old.swappable(); err != nil {
			return nil, errors.Join(wrap(err), old.close())
		}
	}
	if swappable {
		s, err := p.stageSwap(d, old)
		if !cannotSwap(err) {
			return s, wrap(err)
		}
		if err := s.abandon(); err != nil {
			return nil, errors.Join(wrap(err), old.close())
		}
	}
	l, err := old.stageLinks(d.Files)
	return l, wrap(err)
}

// inUse refuses to overwrite files without Force and files of other programs. It
// reports whether the directory has the layout of links.
func (p *place) inUse(set []File, opts Options) (linked bool, err error) {
	version, err := p.root.Readlink(dataLink)
	switch {
	case err == nil && !ours(version, versionPrefix):
		return false, fmt.Errorf("write %s: it is a mounted Secret, or another program keeps it (%s -> %s); write elsewhere", p.path, dataLink, version)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("write %s: %w", p.path, err)
	}
	linked = err == nil
	for _, f := range set {
		path := filepath.Join(p.path, f.Name)
		if target, lerr := p.root.Readlink(f.Name); linked && lerr == nil && target == filepath.Join(dataLink, f.Name) {
			if _, err := p.root.Lstat(filepath.Join(version, f.Name)); err == nil && !opts.Force {
				return false, existsError(path)
			}
			continue
		}
		if exists, err := occupied(path); err != nil {
			return false, err
		} else if exists && !opts.Force {
			return false, existsError(path)
		}
	}
	return linked, nil
}

// maxSwapped bounds the number of other files in a directory that is exchanged.
const maxSwapped = 1000

// swappable reports whether the directory may be exchanged for a new one that gets
// its other files. A directory with folders stays, so that a home directory is never
// exchanged and watchers of a folder are not disturbed. So does the working
// directory, where a shell may be.
func (p *place) swappable() (bool, error) {
	dir, err := p.root.Stat(".")
	if err != nil {
		return false, err
	}
	if work, err := os.Stat("."); err != nil || os.SameFile(dir, work) {
		return false, nil
	}
	entries, err := p.entries()
	if err != nil {
		return false, err
	}
	special := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !e.Type().IsRegular() })
	return !special && len(entries) <= maxSwapped, nil
}

// swap is a new directory that takes the place of the old one.
type swap struct {
	parent     *place
	old        *place // nil if there is none
	name, temp string
	set        []File
	links      *links // used instead when the file system cannot exchange directories
}

func (p *place) stageSwap(d Dir, old *place) (*swap, error) {
	s := &swap{parent: p, old: old, name: d.Name, temp: "." + d.Name + mark + token(), set: d.Files}
	if err := p.root.Mkdir(s.temp, dirMode); err != nil {
		s.temp = ""
		return s, err
	}
	for _, f := range d.Files {
		if err := writeNew(p.root, filepath.Join(s.temp, f.Name), f); err != nil {
			return s, err
		}
	}
	if old != nil {
		if err := s.keepOthers(); err != nil {
			return s, err
		}
	}
	return s, syncIn(p.root, s.temp)
}

// keepOthers gives the new directory the owner, the mode and the other files of the
// old one.
func (s *swap) keepOthers() error {
	entries, err := s.old.entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if slices.ContainsFunc(s.set, func(f File) bool { return f.Name == e.Name() }) {
			continue
		}
		if err := s.parent.root.Link(filepath.Join(s.name, e.Name()), filepath.Join(s.temp, e.Name())); err != nil {
			return err
		}
	}
	info, err := s.old.root.Stat(".")
	if err != nil {
		return err
	}
	fresh, err := s.parent.root.Stat(s.temp)
	if err != nil {
		return err
	}
	if uid, gid := owner(info); uid != -1 {
		if u, g := owner(fresh); u != uid || g != gid {
			if err := s.parent.root.Lchown(s.temp, uid, gid); err != nil {
				return err
			}
		}
	}
	if info.Mode() == fresh.Mode() {
		return nil
	}
	return s.parent.root.Chmod(s.temp, info.Mode())
}

func (s *swap) commit() error {
	if s.old == nil {
		return s.parent.moveNew(s.temp, s.name)
	}
	err := s.parent.exchange(s.temp, s.name)
	if !cannotSwap(err) {
		return err
	}
	old := s.old
	if err := s.abandon(); err != nil {
		return err
	}
	s.links, err = old.stageLinks(s.set)
	if err != nil {
		return err
	}
	return s.links.commit()
}

func (s *swap) undo() error {
	switch {
	case s.links != nil:
		return s.links.undo()
	case s.old == nil:
		return s.parent.moveNew(s.name, s.temp)
	}
	return s.parent.exchange(s.temp, s.name)
}

// abandon removes the new directory and keeps the old one open.
func (s *swap) abandon() error {
	s.old = nil
	return s.finish()
}

func (s *swap) finish() (err error) {
	if s.links != nil {
		return s.links.finish()
	}
	if s.temp != "" {
		err = s.parent.root.RemoveAll(s.temp)
		s.temp = ""
	}
	if s.old != nil {
		err = errors.Join(err, s.old.close())
	}
	return err
}

// cannotSwap reports whether err means that two directories cannot be exchanged, or
// that a directory cannot be made beside the other, as opposed to a full or broken
// disk.
func cannotSwap(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EXDEV, syscall.EBUSY, syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP,
		syscall.EPERM, syscall.EACCES, syscall.EROFS, syscall.EMLINK,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// Names that only this package gives: they identify what a killed process left.
const (
	mark          = ".meshctl-"
	tokenBytes    = 8
	dataLink      = "..data"
	versionPrefix = "." + mark
)

func token() string {
	var b [tokenBytes]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// ours reports whether a name is the prefix and a token.
func ours(name, prefix string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	b, err := hex.DecodeString(rest)
	return ok && err == nil && len(b) == tokenBytes
}

func linkError(path string) error {
	return fmt.Errorf("write %s: it is a symbolic link; remove it or write to its target", path)
}
