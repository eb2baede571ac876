package dir

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// file is one file and its objects.
type file struct {
	path   string
	info   fs.FileInfo
	chunks []*chunk
	// kept holds objects of the previous version that are missing in this one while a
	// document is broken: the broken document may be any of them.
	kept []*fileObject
	// fault is the reason why the file is not used and its last version is.
	fault string
}

func (f *file) fileObjects() []*fileObject {
	var all []*fileObject
	for _, c := range f.chunks {
		all = append(all, c.objects...)
	}
	return append(all, f.kept...)
}

func (f *file) broken() bool {
	return slices.ContainsFunc(f.chunks, func(c *chunk) bool { return len(c.broken) > 0 })
}

// odd reports whether there is anything to report about the file: a part of it is
// broken, not used or not read.
func (f *file) odd() bool {
	return f.fault != "" || slices.ContainsFunc(f.chunks, func(c *chunk) bool {
		return len(c.broken)+len(c.notes)+len(c.skipped) > 0
	})
}

// chunk is one document of a file and its objects. It is immutable, so unchanged
// documents of a changed file are not parsed again.
type chunk struct {
	id      chunkID
	objects []*fileObject
	closed  []*fileObject         // stand for broken security policies
	broken  []fault               // objects that cannot be used
	notes   []fault               // objects and parts of objects that have no effect
	skipped map[snapshot.Kind]int // kinds that are not read
}

type chunkID struct {
	line int
	sum  [sha256.Size]byte
}

// fileObject is one object of a file; object is nil if there is nothing to deliver.
type fileObject struct {
	path   string
	line   int
	nth    int // its index in the document
	key    snapshot.Key
	object snapshot.Object
	closed bool // object is source.Result.Closed
}

// fault is a part of a document that is not used.
type fault struct {
	line   int
	key    snapshot.Key // zero if the name of the object is unknown
	reason string
	// security is set for a security policy, closed if it refuses what it might, and shared for an
	// object that may be meant for another program.
	security, closed, shared bool
	suppress                 string             // see snapshot.Meta
	kind                     fields.ProblemKind // of a note
}

// parsedFile is a new version of a file, before or after parsing.
type parsedFile struct {
	path   string
	info   fs.FileInfo
	chunks []*chunk
	fault  string
}

// job is a document to parse.
type job struct {
	into *chunk
	text yamldoc.Chunk
	path string
	file string // the path in problem reports
}

// newParsedFile splits the text into documents. It keeps the unchanged documents of the
// old version and returns jobs to parse the others.
func newParsedFile(p string, old *file, data []byte, info fs.FileInfo) (rd *parsedFile, jobs []job) {
	rd = &parsedFile{path: p, info: info}
	known := map[chunkID]*chunk{}
	if old != nil {
		for _, c := range old.chunks {
			known[c.id] = c
		}
	}
	for text := range yamldoc.Split(data) {
		id := chunkID{text.Line, sha256.Sum256(text.Text)}
		c := known[id]
		if c == nil {
			c = &chunk{id: id}
			jobs = append(jobs, job{into: c, text: text, path: p})
		}
		if rd.chunks = append(rd.chunks, c); len(rd.chunks) > MaxDocuments {
			rd.fault = fmt.Sprintf("holds more than %d documents: split it", MaxDocuments)
			return rd, nil
		}
	}
	return rd, jobs
}

// batchSize is the number of documents that one goroutine parses: few, so that all processors
// parse until the end.
const batchSize = 16

// parser parses documents in the background while other files are read.
type parser struct {
	conv  *source.Converter
	batch []job
	group sync.WaitGroup
}

// add starts to parse the documents of a file. finish waits for the end.
func (p *parser) add(file string, jobs []job) {
	for _, j := range jobs {
		j.file = file
		if p.batch = append(p.batch, j); len(p.batch) == batchSize {
			batch := p.batch
			p.batch = nil
			p.group.Go(func() { p.parse(batch) })
		}
	}
}

// finish parses the remaining documents and waits for all of them.
func (p *parser) finish() {
	p.parse(p.batch)
	p.batch = nil
	p.group.Wait()
}

func (p *parser) parse(jobs []job) {
	for _, j := range jobs {
		v, err := yamldoc.Parse(j.text)
		j.into.fill(p.conv, j.path, j.file, v, err)
	}
}

// fill sets the objects of the parsed document, or the reason why it cannot be parsed.
func (c *chunk) fill(conv *source.Converter, p, place string, v yamldoc.Value, err error) {
	var syntax *yamldoc.Error
	switch {
	case errors.As(err, &syntax):
		c.broken = append(c.broken, fault{line: syntax.Line, reason: syntax.Text()})
	case !v.IsNull():
		all := listItems(v)
		if len(all) > MaxDocuments {
			c.broken = append(c.broken, fault{line: all[MaxDocuments].Line(), reason: fmt.Sprintf("the list holds more than %d objects: split it", MaxDocuments)})
			all = all[:MaxDocuments]
		}
		for _, o := range all {
			c.addObject(conv, o, p, place)
		}
	}
}

// listItems returns the items of a List, which kubectl prints for several objects, or
// the value itself. It also opens items that are lists.
func listItems(v yamldoc.Value) []yamldoc.Value {
	items, ok := v.Get("items").Items()
	if !ok || !strings.HasSuffix(v.Get("kind").Text(), "List") {
		return []yamldoc.Value{v}
	}
	var all []yamldoc.Value
	for _, item := range items {
		all = append(all, listItems(item)...)
	}
	return all
}

func (c *chunk) addObject(conv *source.Converter, v yamldoc.Value, p, place string) {
	r, err := conv.Decode(v, snapshot.Place{File: place, Line: v.Line()})
	switch {
	case err != nil:
		for _, fe := range fields.FaultsOf(err) {
			c.broken = append(c.broken, fault{line: fe.Line, key: r.Key, reason: fe.Error(), security: r.Security, suppress: r.Suppress})
		}
		if r.Closed != nil {
			c.closed = append(c.closed, closedObject(&r, p, v.Line(), len(c.objects)))
		}
		return
	case r.Skipped:
		if c.skipped == nil {
			c.skipped = map[snapshot.Kind]int{}
		}
		c.skipped[r.Key.Kind]++
	}
	meaning := ""
	if r.Closed != nil {
		meaning = "; " + source.ClosedMeaning
	}
	for _, w := range r.Warnings {
		c.notes = append(c.notes, fault{line: w.Line, key: r.Key, reason: w.Error() + meaning, security: r.Security && w.Kind == fields.Unused, closed: r.Closed != nil, shared: r.Shared, suppress: r.Suppress, kind: w.Kind})
	}
	if r.Closed != nil {
		c.objects = append(c.objects, closedObject(&r, p, v.Line(), len(c.objects)))
	}
	if r.Skipped {
		return
	}
	c.objects = append(c.objects, &fileObject{path: p, line: v.Line(), nth: len(c.objects), key: r.Key, object: r.Object})
}

// closedObject returns the object that is delivered in place of a security policy.
func closedObject(r *source.Result, path string, line, nth int) *fileObject {
	return &fileObject{path: path, line: line, nth: nth, key: r.Closed.Key(), object: r.Closed, closed: true}
}

// finish makes the new version of a file from its parsed documents and the previous
// version.
func (rd *parsedFile) finish(old *file) *file {
	f := &file{path: rd.path, info: rd.info, chunks: rd.chunks}
	if rd.fault != "" {
		f.chunks, f.fault = nil, rd.fault
		if old != nil {
			f.chunks, f.kept = old.chunks, old.kept
		}
		return f
	}
	if !f.broken() {
		return f
	}
	given := map[snapshot.Key]bool{}
	for _, e := range f.fileObjects() {
		given[e.key] = true
	}
	keep := func(e *fileObject) {
		if !given[e.key] {
			given[e.key] = true
			f.kept = append(f.kept, e)
		}
	}
	if old != nil {
		for _, e := range old.fileObjects() {
			if !e.closed {
				keep(e)
			}
		}
	}
	for _, c := range f.chunks {
		for _, e := range c.closed {
			keep(e)
		}
	}
	return f
}
