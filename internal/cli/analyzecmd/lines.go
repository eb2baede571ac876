package analyzecmd

import (
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/dir"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// lines finds the lines of fields in files.
type lines struct {
	texts  map[string][]byte // that were read before
	parsed map[string]bool
	docs   map[snapshot.Place]yamldoc.Value
}

func newLines(clusters []load.Cluster) *lines {
	l := &lines{texts: map[string][]byte{}, parsed: map[string]bool{}, docs: map[snapshot.Place]yamldoc.Value{}}
	for _, c := range clusters {
		for _, f := range c.Files {
			l.texts[f.Name] = f.Text
		}
	}
	return l
}

// exact replaces the line of each object by the line of the faulty field, where the file is
// still the same.
func (l *lines) exact(found []analyze.Finding) []analyze.Finding {
	for i := range found {
		f := &found[i]
		if f.Exact || f.Field == "" || f.Place.File == "" {
			continue
		}
		if v, ok := l.object(f.Place); ok {
			f.Place.Line = v.LineOf(f.Field)
		}
	}
	return found
}

// object returns the object that begins at a place.
func (l *lines) object(at snapshot.Place) (yamldoc.Value, bool) {
	if !l.parsed[at.File] {
		l.parsed[at.File] = true
		text, given := l.texts[at.File]
		if !given {
			text, _ = files.Read(at.File, dir.MaxFileSize) // without it, the line of the object stays
		}
		for chunk := range yamldoc.Split(text) {
			if v, err := yamldoc.Parse(chunk); err == nil {
				l.add(at.File, v)
			}
		}
	}
	v, ok := l.docs[at]
	return v, ok
}

func (l *lines) add(file string, v yamldoc.Value) {
	l.docs[snapshot.Place{File: file, Line: v.Line()}] = v
	items, _ := v.Get("items").Items()
	for _, item := range items {
		l.add(file, item)
	}
}
