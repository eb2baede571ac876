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

	var sets []*pending
	defer func() {
		for _, s := range sets {
			err = errors.Join(err, s.finish())
		}
	}()
	for _, d := range dirs {
		s, err := p.stage(d, opts)
		sets = append(sets, s)
		if err != nil {
			return err
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
			if has(d.Files[:i], f.Name) {
				return fmt.Errorf("write %s: %w", filepath.Join(parent, d.Name), existsError(f.Name))
			}
		}
	}
	return nil
}

func has(set []File, name string) bool {
	return slices.ContainsFunc(set, func(f File) bool { return f.Name == name })
}

// pending is a set that is written but not yet visible.
type pending struct {
	parent     *place
	path, name string
	set        []File
	old        *place // the present directory, nil if there is none
	temp       string // the name of the new directory; empty if links is used
	links      *links // for a directory that cannot be exchanged
}

// stage writes d without showing it. The caller must finish the result, also one
// that comes with an error.
func (p *place) stage(d Dir, opts Options) (*pending, error) {
	s := &pending{parent: p, path: filepath.Join(p.path, d.Name), name: d.Name, set: d.Files}
	info, err := p.root.Lstat(d.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = s.stageSwap()
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		return s, linkError(s.path)
	case !info.IsDir():
		err = errors.New("something that is not a directory is in the way")
	default:
		if s.old, err = openPlace(s.path); err != nil {
			break
		}
		if err := s.old.inUse(d.Files, opts); err != nil {
			return s, err
		}
		err = s.stageOver()
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", s.path, err)
	}
	return s, err
}

// inUse refuses to overwrite files without Force and files of other programs.
func (p *place) inUse(set []File, opts Options) error {
	version, err := p.root.Readlink(dataLink)
	linked := err == nil
	switch {
	case linked && !ours(version, versionPrefix):
		return fmt.Errorf("write %s: it is a mounted Secret, or another program keeps it (%s -> %s); write elsewhere", p.path, dataLink, version)
	case !linked && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("write %s: %w", p.path, err)
	}
	for _, f := range set {
		path := filepath.Join(p.path, f.Name)
		if target, lerr := p.root.Readlink(f.Name); linked && lerr == nil && target == filepath.Join(dataLink, f.Name) {
			if _, err := p.root.Lstat(filepath.Join(version, f.Name)); err == nil && !opts.Force {
				return existsError(path)
			}
			continue
		}
		if exists, err := occupied(path); err != nil {
			return err
		} else if exists && !opts.Force {
			return existsError(path)
		}
	}
	return nil
}

// stageOver writes the new set for a directory that exists.
func (s *pending) stageOver() error {
	if err := s.old.sweep(); err != nil {
		return err
	}
	swappable, err := s.old.swappable()
	if err != nil {
		return err
	}
	if swappable {
		if err := s.stageSwap(); !cannotSwap(err) {
			return err
		}
	}
	return s.stageLinks()
}

// maxSwapped bounds the number of other files in a directory that is exchanged.
const maxSwapped = 1000

// swappable reports whether the directory may be exchanged for a new one that gets
// its other files. A directory with folders or links stays, so that a home directory
// is never exchanged and watchers of a folder are not disturbed. So does the working
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

// stageSwap makes a directory that can take the place of the old one.
func (s *pending) stageSwap() error {
	root, temp := s.parent.root, "."+s.name+mark+token()
	if err := root.Mkdir(temp, dirMode); err != nil {
		return err
	}
	s.temp = temp
	old := ""
	if s.old != nil {
		old = s.name
	}
	err := s.parent.fill(temp, s.set, old)
	if err == nil && s.old != nil {
		err = s.keepMode()
	}
	if err != nil {
		return err
	}
	return syncIn(root, temp)
}

// keepMode gives the new directory the owner and the mode of the old one.
func (s *pending) keepMode() error {
	root := s.parent.root
	info, err := s.old.root.Stat(".")
	if err != nil {
		return err
	}
	fresh, err := root.Stat(s.temp)
	if err != nil {
		return err
	}
	uid, gid := owner(info)
	if u, g := owner(fresh); u != uid || g != gid {
		if err := root.Lchown(s.temp, uid, gid); err != nil {
			return err
		}
	}
	if info.Mode() == fresh.Mode() {
		return nil
	}
	return root.Chmod(s.temp, info.Mode())
}

// stageLinks removes the new directory and uses the layout of links.
func (s *pending) stageLinks() (err error) {
	if err := s.removeTemp(); err != nil {
		return err
	}
	s.links, err = s.old.stageLinks(s.set)
	return err
}

func (s *pending) removeTemp() (err error) {
	if s.temp != "" {
		err = s.parent.root.RemoveAll(s.temp)
		s.temp = ""
	}
	return err
}

// commit shows the new set.
func (s *pending) commit() error {
	switch {
	case s.links != nil:
		return s.links.commit()
	case s.old == nil:
		return s.parent.moveNew(s.temp, s.name)
	}
	if err := renameExchange(s.parent.dir, s.temp, s.name); !cannotSwap(err) {
		return err
	}
	if err := s.stageLinks(); err != nil {
		return err
	}
	return s.links.commit()
}

// undo shows the old set again.
func (s *pending) undo() error {
	switch {
	case s.links != nil:
		return s.links.undo()
	case s.old == nil:
		return s.parent.moveNew(s.name, s.temp)
	}
	return renameExchange(s.parent.dir, s.temp, s.name)
}

// finish removes the set that is not visible.
func (s *pending) finish() error {
	err := s.removeTemp()
	if s.links != nil {
		err = errors.Join(err, s.links.finish())
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
	return isAny(err, syscall.EXDEV, syscall.EBUSY, syscall.EINVAL, syscall.ENOSYS, syscall.EOPNOTSUPP,
		syscall.EPERM, syscall.EACCES, syscall.EROFS, syscall.EMLINK)
}

func isAny(err error, numbers ...syscall.Errno) bool {
	return slices.ContainsFunc(numbers, func(n syscall.Errno) bool { return errors.Is(err, n) })
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
