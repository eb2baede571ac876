package dir

import (
	"bytes"
	"cmp"
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

// kubeletData is the symlink that kubelet swaps to change all files of a
// mounted ConfigMap or Secret at once: file -> ..data/file, ..data -> ..2026_….
const kubeletData = "..data"

// maxPending bounds the text that is held before it is parsed, in bytes.
const maxPending = 64 << 20

// tree is what is known of the directory, by slash path from it.
type tree struct {
	files   map[string]*file
	odd     map[string]*file // those of them that there is something to tell about
	folders map[string]*folder
	known   int            // names in all folders
	under   map[string]int // names in each folder and those below it
	// closed are folders of which a name was left out because the directory holds
	// more than is read: the path for a file, with a slash for a folder.
	closed map[string]bool
	// faults are the reasons why something is not read.
	faults map[string]string
	// gone says that the directory does not exist, unwatched that its events
	// do not come, overfull that it holds more than is read, room that
	// something went since.
	gone, unwatched, overfull, room bool
	// pending are files whose text is read and perhaps not parsed yet.
	pending     []*parsedFile
	pendingSize int
	parser      parser
	// changed are the files whose documents are others than in the batch before.
	changed map[string]bool
	// missing are files that were not found, since when. A listing may miss a
	// file that is renamed meanwhile under both of its names, so their objects
	// stay until another file has them, or for missingWait.
	missing map[string]time.Time
	// again are the names that could not be read for want of something that may
	// be there soon; failures is how often in a row some were.
	again    map[string]bool
	failures int
}

// missingWait is how long a file may be missing that nobody said was removed.
const missingWait = 50 * time.Millisecond

type folder struct {
	info  fs.FileInfo
	names map[string]bool // what is known in it
}

// folder reads a folder that is new or not the one that it was; with force
// also one that did not change. It watches before it reads, so that nothing
// is missed in between.
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
	_ = r.watcher.Remove(name) // it may be the watch of another folder that had the name
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

// swaps bounds how often lookFor looks for what is not found: a name that leads through
// ..data may be followed into a folder that kubelet removes, having swapped the
// link first. So what is not there each time is really gone.
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

// list returns what is in a folder, in order, and never a part of one that is
// being removed.
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

// Faults of a directory that holds more than is read, and of its folders.
const (
	overfull = "holds more than "
	leftOut  = "is not read wholly: the directory holds more than is read"
)

// full reports that there is no room for another name. In a directory that is
// full, a name of a smaller folder takes the place of one of a larger folder.
func (r *reader) full(p string, isFolder bool) bool {
	if r.known < r.maxFiles || r.knows(p) {
		return false
	}
	kind := path.Dir(p)
	if isFolder {
		kind += "/"
	}
	left := p
	if !r.closed[kind] {
		left = cmp.Or(r.displaced(p, isFolder), p)
	}
	if left == p {
		r.closed[kind] = true
	} else {
		r.forget(left)
	}
	r.overfull, r.room = true, false
	r.faults["."] = fmt.Sprintf("%s%d files and folders: not all are read", overfull, r.maxFiles)
	if in := path.Dir(left); in != "." {
		r.faults[in] = leftOut
	}
	return left == p
}

// displaced returns the name that makes room for p: one of the largest folder,
// at the first level where that is not the folder of p. It is empty when the
// folder of p is as large.
func (r *reader) displaced(p string, isFolder bool) string {
	at := "."
	for parts := strings.Split(p, "/"); ; parts = parts[1:] {
		own := parts[0]
		if len(parts) == 1 && !isFolder {
			own = "" // one of the files of the folder
		}
		largest, size := r.largest(at)
		switch {
		case largest != own && size > r.size(at, own)+1:
			return r.last(at, largest)
		case largest != own, len(parts) == 1:
			return ""
		}
		at = path.Join(at, own)
	}
}

// last returns a name among the largest of a folder, which are those of another
// folder in it or, with "", its files.
func (r *reader) last(at, largest string) string {
	for largest != "" {
		at = path.Join(at, largest)
		if len(r.folders[at].names) == 0 {
			return at
		}
		largest, _ = r.largest(at)
	}
	last := ""
	for name := range r.folders[at].names {
		if r.folders[path.Join(at, name)] == nil {
			last = max(last, name)
		}
	}
	return path.Join(at, last)
}

// largest returns the folder in a folder with the most names, "" for the files
// of the folder itself, and how many names these are.
func (r *reader) largest(at string) (name string, size int) {
	size = r.size(at, "")
	for n := range r.folders[at].names {
		if r.folders[path.Join(at, n)] == nil {
			continue
		}
		if s := r.size(at, n); s > size || s == size && n > name {
			name, size = n, s
		}
	}
	return name, size
}

// size returns how many names a folder in a folder has, itself among them, or with
// "" how many files the folder has.
func (r *reader) size(at, name string) int {
	if name != "" {
		if in := path.Join(at, name); r.folders[in] != nil {
			return r.under[in] + 1
		}
		return 0
	}
	files := 0
	for n := range r.folders[at].names {
		if r.folders[path.Join(at, n)] == nil {
			files++
		}
	}
	return files
}

// knows reports whether the name is known in its folder.
func (r *reader) knows(p string) bool {
	parent := r.folders[path.Dir(p)]
	return parent != nil && parent.names[path.Base(p)]
}

func (r *reader) remember(p string) {
	if parent := r.folders[path.Dir(p)]; parent != nil && p != "." && !parent.names[path.Base(p)] {
		parent.names[path.Base(p)] = true
		r.count(p, 1)
	}
}

// count enters a name, or takes it out, where names are counted.
func (r *reader) count(p string, by int) {
	r.known += by
	for p != "." {
		p = path.Dir(p)
		if r.under[p] += by; r.under[p] == 0 {
			delete(r.under, p)
		}
	}
}

// scan compares the names in a folder with what is known. With force it also
// reads again the files that it knows.
func (r *reader) scan(p string, force bool) {
	f := r.folders[p]
	if f == nil {
		return
	}
	entries, err := r.list(p)
	if errors.Is(err, fs.ErrNotExist) {
		if p != "." { // for the directory itself its own event decides
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
		if !present[name] { // first of all: a watch moves with its folder to another name
			r.miss(path.Join(p, name))
		}
	}
	for _, e := range entries {
		r.visit(path.Join(p, e.Name()), e.Type(), force)
	}
}

// miss is told of a name that was not found.
func (r *reader) miss(p string) {
	if r.files[p] == nil {
		r.forget(p)
	} else if _, known := r.missing[p]; !known {
		r.missing[p] = r.now()
	}
}

// giveUp forgets what has been missing for long. It returns how long to wait
// for the rest, 0 when there is none.
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
		r.scan(path.Dir(p), false) // its new name may be there before the event
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

// failed notes why a name is not read, and to look at it again if that may pass
// without a change of it.
func (r *reader) failed(p, what string, err error) {
	r.faults[p] = what + reason(err)
	if files.Transient(err) {
		r.again[p] = true
	}
}

// Waits before names that could not be read are looked at again.
const (
	firstAgain = 100 * time.Millisecond
	lastAgain  = 10 * time.Second
)

// lookAgain looks at the names that could not be read. It returns how long to
// wait until the next time, 0 when all were read.
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

// forget drops a file or folder that is gone, with all that is in it.
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

// drop takes the objects of a file away.
func (r *reader) drop(p string) {
	if f := r.files[p]; f != nil {
		r.replace(f.fileObjects(), nil)
		delete(r.files, p)
		delete(r.odd, p)
		delete(r.missing, p)
		r.changed[p] = true
	}
}

// visit looks at one name in a folder. With force a known file is read again.
func (r *reader) visit(p string, mode fs.FileMode, force bool) {
	base := path.Base(p)
	if strings.HasPrefix(base, ".") {
		return
	}
	if isFolder := mode.IsDir(); isFolder && r.files[p] != nil || mode.IsRegular() && r.folders[p] != nil {
		r.forget(p) // another kind of thing has the name now
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

// symlink follows a link that stays within the directory: to a file, or, in
// kubelet's form alone, to a folder, as others are read under their own name.
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
		// A folder made after two swaps may have the number of the first.
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

// read takes the text of a file in; load parses it.
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
		// Most programs that write in place make the file empty first.
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

// text reads a regular file within the bounds. It never waits: opening a
// named pipe would.
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
	data.Grow(int(min(info.Size(), MaxFileSize)) + bytes.MinRead) // the end is read without growing
	_, err = data.ReadFrom(io.LimitReader(f, MaxFileSize+1))
	if err == nil && data.Len() > MaxFileSize {
		err = fmt.Errorf("is larger than %d MiB: split it", MaxFileSize>>20)
	}
	return data.Bytes(), info, err
}

// load has all parsed that was read and puts it in the place of what the files gave.
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

// found forgets missing files of which the file has an object: it is the same
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

// escapes is what os.Root says of a link that leads out of the directory.
const escapes = "path escapes from parent"

// reason is the fault without the path, which the report names anyway.
func reason(err error) string {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		if pe.Err.Error() == escapes {
			return "links may not leave the directory"
		}
		return pe.Err.Error()
	}
	return err.Error()
}
