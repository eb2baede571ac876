package dir

import (
	"cmp"
	"fmt"
	"path"
	"strings"
)

// Bounds of a directory.
const (
	// MaxFileSize bounds the size of a file, in bytes.
	MaxFileSize = 8 << 20
	// MaxDocuments bounds the documents of a file, and the objects of a document.
	MaxDocuments = 20_000
	// MaxFiles bounds the number of files and folders.
	MaxFiles = 10_000
)

// maxPending bounds the text of files that are not parsed yet, in bytes.
const maxPending = 64 << 20

// Faults of a directory that exceeds maxFiles, and of its folders.
const (
	overfull = "holds more than "
	leftOut  = "is not read wholly: the directory holds more than is read"
)

// full reports whether there is no room for another name. In a full directory, a name
// of a smaller folder displaces a name of a larger folder.
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

// displaced returns the name that makes room for p. It is a name of the largest folder
// at the first level where that is not the folder of p; empty if the folder of p is as
// large.
func (r *reader) displaced(p string, isFolder bool) string {
	at := "."
	for parts := strings.Split(p, "/"); ; parts = parts[1:] {
		own := parts[0]
		if len(parts) == 1 && !isFolder {
			own = "" // the files of the folder
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

// last returns the last name below largest, which is a folder in the folder at, or with
// "" the last of the folder's own files.
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

// largest returns the folder in a folder with the most names, "" for the files of the
// folder itself, and the number of names.
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

// size returns the number of names of a folder in a folder, including its own, or with
// "" the number of the folder's own files.
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

// knows reports whether the folder of p has the name of p.
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

// count adds by to the counts of all folders above p.
func (r *reader) count(p string, by int) {
	r.known += by
	for p != "." {
		p = path.Dir(p)
		if r.under[p] += by; r.under[p] == 0 {
			delete(r.under, p)
		}
	}
}
