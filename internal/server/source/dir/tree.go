package dir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/meshctl/meshctl/internal/files"
)

// kubeletData is the link that the kubelet replaces to change all files of a mounted
// ConfigMap or Secret at once: file -> ..data/file, ..data -> ..2026_….
const kubeletData = "..data"

// tree holds the known files and folders, by slash path within the directory.
type tree struct {
	files   map[string]*file
	odd     map[string]*file // the files with something to report
	folders map[string]*folder
	known   int            // names in all folders
	under   map[string]int // names in each folder and below it
	// closed holds the folders with names that were left out because the directory is
	// full: path for files, path with a slash for folders.
	closed map[string]bool
	// faults holds the reason for each name that is not read.
	faults map[string]string
	// gone is set while the directory does not exist, unwatched while it has no
	// watch, overfull when it exceeds maxFiles, room when a name was removed since.
	gone, unwatched, overfull, room bool
	// pending holds files that may not be parsed yet.
	pending     []*parsedFile
	pendingSize int
	parser      parser
	// changed holds the files whose documents changed since the last batch.
	changed map[string]bool
	// missing holds files that were not found, with the time. A listing may miss both
	// names of a file that is being renamed, so the objects stay until another file
	// has them, or for missingWait.
	missing map[string]time.Time
	// again holds names to retry after a transient error. failures counts the
	// retries in a row with such errors.
	again    map[string]bool
	failures int
}

// missingWait is the time for which a file may be missing without a remove event.
const missingWait = 50 * time.Millisecond

type folder struct {
	info  fs.FileInfo
	names map[string]bool // known names in it
}

// folder reads a folder that is new or was replaced, with force also an unchanged one.
// It adds the watch before it reads, so that no change is missed.
func (r *reader) folder(p string, force bool) {
	info, err := r.stat(p)
	if errors.Is(err, fs.ErrNotExist) && p != "." { // gone since it was seen
		r.forget(p)
		return
	}
	if err != nil {
		r.failed(p, "cannot be read: ", err)
		return
	}
	f := r.folders[p]
	switch {
	case f == nil && r.full(p, true):
		return
	case f == nil:
		f = &folder{names: map[string]bool{}}
		r.folders[p] = f
		r.remember(p)
	case !force && os.SameFile(f.info, info):
		return
	}
	f.info = info
	name := filepath.Join(r.dir, filepath.FromSlash(p))
	_ = r.watcher.Remove(name) // the watch may belong to another folder that had the name
	if err := r.watcher.Add(name); err != nil {
		r.failed(p, "cannot be watched, changes in it are not seen: ", err)
		r.unwatched = r.unwatched || p == "." // to be tried again
	} else {
		delete(r.faults, p)
	}
	r.scan(p, true)
	if p == "." {
		r.load()
	}
}

// swaps bounds the attempts of lookFor. A name may lead through ..data into a folder
// that the kubelet removes after it replaced the link, so a name is gone only if every
// attempt fails.
const swaps = 4

func lookFor[T any](look func() (T, error)) (v T, err error) {
	for range swaps {
		if v, err = look(); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return v, err
}

func (r *reader) stat(p string) (fs.FileInfo, error) {
	return lookFor(func() (fs.FileInfo, error) { return r.root.Stat(p) })
}

// list returns the sorted entries of a folder, and never some of a folder that is being
// removed.
func (r *reader) list(p string) ([]fs.DirEntry, error) {
	return lookFor(func() ([]fs.DirEntry, error) {
		before, err := r.root.Stat(p)
		if err != nil {
			return nil, err
		}
		entries, err := fs.ReadDir(r.root.FS(), p)
		if err != nil {
			return nil, err
		}
		after, err := r.root.Stat(p)
		if err == nil && !os.SameFile(before, after) {
			err = fs.ErrNotExist
		}
		return entries, err
	})
}

// scan compares the names in a folder with the known names. With force it also reads
// known files again.
func (r *reader) scan(p string, force bool) {
	f := r.folders[p]
	if f == nil {
		return
	}
	entries, err := r.list(p)
	if errors.Is(err, fs.ErrNotExist) {
		if p != "." { // for the directory itself, see checkRoot
			r.forget(p)
		}
		return
	}
	if err != nil {
		r.failed(p, "cannot be read: ", err)
		return
	}
	delete(r.closed, p)
	delete(r.closed, p+"/")
	if r.faults[p] == leftOut {
		delete(r.faults, p)
	}
	present := map[string]bool{}
	for _, e := range entries {
		present[e.Name()] = true
	}
	for name := range f.names {
		if !present[name] { // before the new names: a watch moves with its folder
			r.miss(path.Join(p, name))
		}
	}
	for _, e := range entries {
		r.visit(path.Join(p, e.Name()), e.Type(), force)
	}
}

// miss handles a name that was not found.
func (r *reader) miss(p string) {
	if r.files[p] == nil {
		r.forget(p)
	} else if _, known := r.missing[p]; !known {
		r.missing[p] = r.now()
	}
}

// giveUp forgets names that have been missing for missingWait. It returns the wait for
// the other missing names, 0 if there are none.
func (r *reader) giveUp() (wait time.Duration) {
	now := r.now()
	var late []string
	for p, since := range r.missing {
		if left := missingWait - now.Sub(since); left > 0 {
			wait = max(wait, left)
		} else {
			late = append(late, p)
		}
	}
	for _, p := range late {
		r.scan(path.Dir(p), false) // the new name may exist before its event
		r.load()
		if _, still := r.missing[p]; !still {
			continue
		}
		delete(r.missing, p)
		switch info, err := r.root.Lstat(p); {
		case err == nil:
			r.visit(p, info.Mode().Type(), true)
		case files.Transient(err):
			r.failed(p, "cannot be read: ", err)
		default:
			r.forget(p)
		}
	}
	return wait
}

// failed records why a name is not read. It schedules a retry if the error is
// transient.
func (r *reader) failed(p, what string, err error) {
	r.faults[p] = what + reason(err)
	if files.Transient(err) {
		r.again[p] = true
	}
}

// Waits before the retries of unreadable names.
const (
	firstAgain = 100 * time.Millisecond
	lastAgain  = 10 * time.Second
)

// lookAgain retries the unreadable names. It returns the wait until the next retry, 0
// if all were read.
func (r *reader) lookAgain() time.Duration {
	names := slices.Sorted(maps.Keys(r.again))
	clear(r.again)
	for _, p := range names {
		delete(r.faults, p)
		if p == "." {
			r.folder(p, true)
		} else {
			r.event(p, fsnotify.Create)
		}
	}
	r.load()
	if len(r.again) == 0 {
		r.failures = 0
		return 0
	}
	r.failures++
	return r.waitAgain()
}

func (r *reader) waitAgain() time.Duration {
	return min(firstAgain<<min(r.failures, 10), lastAgain)
}

// forget drops a file or folder, with everything below it.
func (r *reader) forget(p string) {
	if f := r.folders[p]; f != nil {
		for name := range f.names {
			r.forget(path.Join(p, name))
		}
		_ = r.watcher.Remove(filepath.Join(r.dir, filepath.FromSlash(p)))
		delete(r.folders, p)
		delete(r.closed, p)
		delete(r.closed, p+"/")
	}
	r.drop(p)
	delete(r.faults, p)
	if r.knows(p) {
		delete(r.folders[path.Dir(p)].names, path.Base(p))
		r.count(p, -1)
		r.room = true
	}
}

// drop removes the objects of a file.
func (r *reader) drop(p string) {
	if f := r.files[p]; f != nil {
		r.replace(f.fileObjects(), nil)
		delete(r.files, p)
		delete(r.odd, p)
		delete(r.missing, p)
		r.changed[p] = true
	}
}

// visit handles one name in a folder. With force it reads a known file again.
func (r *reader) visit(p string, mode fs.FileMode, force bool) {
	base := path.Base(p)
	if strings.HasPrefix(base, ".") {
		return
	}
	if isFolder := mode.IsDir(); isFolder && r.files[p] != nil || mode.IsRegular() && r.folders[p] != nil {
		r.forget(p) // a folder became a file, or the reverse
	}
	switch {
	case mode.IsDir():
		r.folder(p, force)
	case mode&fs.ModeSymlink != 0:
		r.symlink(p, force)
	case isManifest(base) && (force || r.files[p] == nil):
		r.read(p)
	}
}

func isManifest(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// symlink follows a link within the directory. It follows a link to a folder only in
// the kubelet's layout: other folders are read under their own names.
func (r *reader) symlink(p string, force bool) {
	info, err := r.stat(p)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.forget(p)
		if isManifest(p) {
			r.fault(p, "the symlink points to nothing")
		}
	case files.Transient(err):
		r.failed(p, "cannot be read: ", err)
	case err != nil:
		r.forget(p)
		if outside, e := os.Stat(filepath.Join(r.dir, filepath.FromSlash(p))); isManifest(p) || e == nil && outside.IsDir() {
			r.fault(p, "the symlink is not followed: "+reason(err))
		}
	case info.IsDir():
		target, err := r.root.Readlink(p)
		inner, ok := strings.CutPrefix(filepath.ToSlash(target), kubeletData+"/")
		if err != nil || !ok || !fs.ValidPath(inner) {
			r.fault(p, "the symlink to a folder is not followed: only kubelet's form ..data/NAME is")
			return
		}
		// After two replacements, a new folder may have the inode of the first.
		f := r.folders[p]
		r.folder(p, force || f != nil && !f.info.ModTime().Equal(info.ModTime()))
	case isManifest(p):
		f := r.files[p]
		if force || f == nil || !os.SameFile(f.info, info) || !f.info.ModTime().Equal(info.ModTime()) || f.info.Size() != info.Size() {
			r.read(p)
		}
	}
}

func (r *reader) fault(p, why string) {
	r.faults[p] = why
	r.remember(p)
}

// read reads a file and starts to parse it; load waits for the result.
func (r *reader) read(p string) {
	if r.full(p, false) {
		return
	}
	data, info, err := r.text(p)
	if errors.Is(err, fs.ErrNotExist) {
		r.miss(p)
		return
	}
	delete(r.missing, p)
	r.remember(p)
	if err != nil {
		r.failed(p, "", err)
		if f := r.files[p]; f != nil {
			r.faults[p] += keptText(len(f.fileObjects()))
		}
		return
	}
	delete(r.faults, p)
	if f := r.files[p]; f != nil && len(data) == 0 && len(f.fileObjects()) > 0 {
		// Most programs that write in place empty the file first.
		r.faults[p] = emptyFile + keptText(len(f.fileObjects()))
		return
	}
	rd, jobs := newParsedFile(p, r.files[p], data, info)
	r.pending = append(r.pending, rd)
	r.parser.add(filepath.Join(r.dir, filepath.FromSlash(p)), jobs)
	if r.pendingSize += len(data); r.pendingSize > maxPending {
		r.load()
	}
}

// text reads a regular file of at most MaxFileSize. It never waits, not even for the
// writer of a named pipe.
func (r *reader) text(p string) ([]byte, fs.FileInfo, error) {
	f, err := r.root.OpenFile(filepath.FromSlash(p), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, errors.New("is not a regular file")
	}
	var data bytes.Buffer
	data.Grow(int(min(info.Size(), MaxFileSize)) + bytes.MinRead) // so that ReadFrom does not grow it
	_, err = data.ReadFrom(io.LimitReader(f, MaxFileSize+1))
	if err == nil && data.Len() > MaxFileSize {
		err = fmt.Errorf("is larger than %d MiB: split it", MaxFileSize>>20)
	}
	return data.Bytes(), info, err
}

// load waits until all pending files are parsed, and replaces their old versions.
func (r *reader) load() {
	if len(r.pending) == 0 {
		return
	}
	r.parser.finish()
	for _, rd := range r.pending {
		if !r.knows(rd.path) { // it had to make room
			continue
		}
		old := r.files[rd.path]
		f := rd.finish(old)
		var before []*fileObject
		if old != nil {
			before = old.fileObjects()
		}
		r.replace(before, f.fileObjects())
		r.files[rd.path] = f
		if delete(r.odd, rd.path); f.odd() {
			r.odd[rd.path] = f
		}
		if old == nil || !slices.Equal(old.chunks, f.chunks) {
			r.changed[rd.path] = true
		}
		r.found(f)
	}
	r.pending, r.pendingSize = slices.Delete(r.pending, 0, len(r.pending)), 0
}

// found forgets missing files that share an object with the file: it is the same file
// under another name.
func (r *reader) found(f *file) {
	if len(r.missing) == 0 {
		return
	}
	for _, e := range f.fileObjects() {
		for _, giver := range slices.Clone(r.givers[e.key]) {
			if _, missing := r.missing[giver.path]; missing && giver.path != e.path {
				r.forget(giver.path)
			}
		}
	}
}

// escapes is the error text of os.Root for a link that leads out of the directory.
const escapes = "path escapes from parent"

// reason returns the error without the path, which the report names.
func reason(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		if pe.Err.Error() == escapes {
			return "links may not leave the directory"
		}
		return pe.Err.Error()
	}
	return err.Error()
}
