package files

import (
	"errors"
	"io/fs"
	"path/filepath"
)

// links is a new version of a set in the layout of a mounted Secret.
type links struct {
	at            *place
	set           []File
	version, prev string // folders; prev is empty before the first version
}

// stageLinks writes the set as a new version, together with the other files of the
// previous version.
func (p *place) stageLinks(set []File) (*links, error) {
	l := &links{at: p, set: set}
	if version, err := p.root.Readlink(dataLink); err == nil {
		l.prev = version
	} else if !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	if err := p.tidy(l.prev); err != nil {
		return l, err
	}
	version := versionPrefix + token()
	if err := p.root.Mkdir(version, dirMode); err != nil {
		return l, err
	}
	l.version = version
	if err := p.fill(version, set, l.prev); err != nil {
		return l, err
	}
	return l, syncIn(p.root, version)
}

func (l *links) commit() error {
	if err := l.convert(); err != nil {
		return err
	}
	for _, f := range l.set {
		// The links of new names lead nowhere until ..data changes.
		err := l.at.root.Symlink(filepath.Join(dataLink, f.Name), f.Name)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := l.at.sync(); err != nil {
		return err
	}
	return l.show(l.version)
}

// convert moves plain files into the previous version and leaves links in their
// place. A reader sees the same content throughout.
func (l *links) convert() error {
	first := l.prev == ""
	if first {
		l.prev = versionPrefix + token()
		if err := l.at.root.Mkdir(l.prev, dirMode); err != nil {
			return err
		}
	}
	var plain []string
	for _, f := range l.set {
		info, err := l.at.root.Lstat(f.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case !info.Mode().IsRegular():
			continue
		}
		in := filepath.Join(l.prev, f.Name)
		if err := l.at.root.RemoveAll(in); err != nil { // no link leads to it
			return err
		}
		if err := l.at.root.Link(f.Name, in); err != nil {
			return err
		}
		plain = append(plain, f.Name)
	}
	if err := syncIn(l.at.root, l.prev); err != nil {
		return err
	}
	if first {
		if err := l.show(l.prev); err != nil {
			return err
		}
	}
	for _, name := range plain {
		if err := l.at.replaceLink(filepath.Join(dataLink, name), name); err != nil {
			return err
		}
	}
	return nil
}

// show makes ..data a link to a version.
func (l *links) show(version string) error {
	if err := l.at.replaceLink(version, dataLink); err != nil {
		return err
	}
	return l.at.sync()
}

// replaceLink makes name a link to target, in one step.
func (p *place) replaceLink(target, name string) error {
	temp := versionPrefix + token()
	if err := p.root.Symlink(target, temp); err != nil {
		return err
	}
	if err := p.root.Rename(temp, name); err != nil {
		return errors.Join(err, p.root.Remove(temp))
	}
	return nil
}

func (l *links) undo() error { return l.show(l.prev) }

func (l *links) finish() error {
	shown, err := l.at.root.Readlink(dataLink)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return l.at.tidy(shown)
}

// tidy removes all versions except the visible one, and the links to files that it
// lacks.
func (p *place) tidy(shown string) error {
	err := p.remove(func(name string) bool { return ours(name, versionPrefix) && name != shown })
	if err != nil {
		return err
	}
	entries, err := p.entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		target, err := p.root.Readlink(e.Name())
		if err != nil {
			return err
		}
		if target != filepath.Join(dataLink, e.Name()) {
			continue
		}
		if _, err := p.root.Stat(e.Name()); errors.Is(err, fs.ErrNotExist) {
			if err := p.root.Remove(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}
