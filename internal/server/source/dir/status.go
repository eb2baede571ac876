package dir

import (
	"cmp"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// Problem is a part of the directory that is not used.
type Problem struct {
	// File is the path, including the path of the directory.
	File string
	// Line is the line of the faulty field, from 1; 0 for the whole file.
	Line int
	// Object is kind and namespace/name; empty if unknown. Key holds the known parts.
	Object string
	Key    snapshot.Key
	Kind   fields.ProblemKind
	// Suppress holds codes of findings, see snapshot.Meta.
	Suppress string
	// Reason states the fault and the version in use.
	Reason string
	// Since is the time when the problem was first seen.
	Since time.Time
	// Unenforced is set for a security policy that is not fully enforced.
	Unenforced bool
	// Shared is set for an object that may be meant for another program.
	Shared bool
	// Security is set for a security policy.
	Security bool
}

// Place returns the file and, if known, the line.
func (p *Problem) Place() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

func (p *Problem) String() string {
	if p.Object == "" {
		return p.Place() + ": " + p.Reason
	}
	return p.Place() + ": " + p.Object + ": " + p.Reason
}

// maxProblems bounds the problems that are shown of one file.
const maxProblems = 100

const emptyFile = "the file is empty, as while it is being written"

// Status returns the problems, sorted by file and line. It may be called from any
// goroutine. The result must not be changed.
func (s *Source) Status() []Problem {
	if p := s.status.Load(); p != nil {
		return *p
	}
	return nil
}

// goneDirectory begins the reason when the directory is gone.
const goneDirectory = "the directory is gone; its objects stay in use until it is back: "

// Lost returns the time since which the directory is gone, and the reason. The time is
// zero while the directory exists. It may be called from any goroutine.
func (s *Source) Lost() (since time.Time, reason string) {
	for _, p := range s.Status() {
		if p.Object == "" && strings.HasPrefix(p.Reason, goneDirectory) {
			return p.Since, p.Reason
		}
	}
	return time.Time{}, ""
}

// LeftOut returns a text that names the folders that are read only in part because the
// directory exceeds MaxFiles; empty if it does not. It may be called from any
// goroutine.
func (s *Source) LeftOut() string {
	var text string
	var folders []string
	for _, p := range s.Status() {
		switch {
		case p.File == filepath.Clean(s.Dir) && p.Object == "" && strings.HasPrefix(p.Reason, overfull):
			text = "the directory " + p.File + " " + p.Reason
		case p.Reason == leftOut && len(folders) <= maxLeftOut:
			folders = append(folders, p.File)
		}
	}
	if len(folders) > maxLeftOut {
		folders[maxLeftOut] = "more"
	}
	if text != "" && len(folders) > 0 {
		text += "; left out is a part of " + strings.Join(folders, ", ")
	}
	return text
}

// maxLeftOut bounds the folders that LeftOut names.
const maxLeftOut = 10

// publish delivers the changes and then reports the problems. It returns the counts of
// the changes, and the name of the object if there is only one.
func (r *reader) publish() (d delta, only string) {
	r.load()
	events, d := r.take()
	if len(events) > 0 {
		r.sink.Apply(events)
	}
	r.report()
	if len(events) == 1 {
		only = fields.ObjectName(events[0].Key)
	}
	return d, only
}

// report publishes the problems and logs changes: first the problems that are gone,
// then the new ones. A problem that is replaced by another one is not logged as gone.
func (r *reader) report() {
	now := r.now()
	problems := r.problems()
	type identity struct{ file, object, reason string } // a line may move
	before := map[identity][]Problem{}
	for _, p := range r.Status() {
		id := identity{p.File, p.Object, p.Reason}
		before[id] = append(before[id], p)
	}
	var came []Problem
	replaced := map[[2]string]bool{} // file and object
	for i := range problems {
		p := &problems[i]
		id := identity{p.File, p.Object, p.Reason}
		if left := before[id]; len(left) > 0 {
			p.Since, before[id] = left[0].Since, left[1:]
			continue
		}
		p.Since = now
		came = append(came, *p)
		replaced[[2]string{p.File, p.Object}] = true
	}
	var gone []Problem
	for _, left := range before {
		for _, p := range left {
			// A fault without an object is a fault of the text, which hides the others.
			if !replaced[[2]string{p.File, p.Object}] && !replaced[[2]string{p.File, ""}] {
				gone = append(gone, p)
			}
		}
	}
	slices.SortFunc(gone, byPlaceInFile)
	for _, p := range gone {
		if !isTransient(p.Reason) {
			r.log.Info("problem of the configuration is gone", p.attrs()...)
		}
	}
	for _, p := range came {
		if !isTransient(p.Reason) {
			p.Log(r.log)
		}
	}
	r.status.Store(&problems)
}

// Log logs the problem.
func (p *Problem) Log(log *slog.Logger) {
	fields.LogProblem(log, []fields.ProblemKind{p.Kind}, p.Unenforced, p.Shared, p.attrs()...)
}

// attrs returns the known attributes for the log.
func (p *Problem) attrs() []any {
	attrs := []any{"file", p.File}
	if p.Line > 0 {
		attrs = append(attrs, "line", p.Line)
	}
	if p.Object != "" {
		attrs = append(attrs, "object", p.Object)
	}
	return append(attrs, "reason", p.Reason)
}

func byPlaceInFile(a, b Problem) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Reason, b.Reason))
}

// isTransient reports whether a problem is normal while a file is being written. Such
// problems are not logged.
func isTransient(reason string) bool { return strings.HasPrefix(reason, emptyFile) }

func (r *reader) problems() []Problem {
	var all []Problem
	for p, why := range r.faults {
		all = append(all, Problem{Kind: fields.Unreadable, File: r.fileName(p), Reason: why})
	}
	for _, f := range r.odd {
		all = append(all, f.problems(r.fileName(f.path))...)
	}
	for key := range r.doubles {
		first := r.givers[key][0]
		for _, e := range r.givers[key][1:] {
			all = append(all, repeated(r.fileName(e.path), e, r.fileName(first.path), first.line))
		}
	}
	slices.SortFunc(all, byPlaceInFile)
	return all
}

// repeated returns the problem of an object in a file that is given before, too.
func repeated(file string, o *fileObject, firstFile string, firstLine int) Problem {
	return Problem{
		Kind: fields.Repeated, File: file, Line: o.line, Object: fields.ObjectName(o.key), Key: o.key,
		Reason: fmt.Sprintf("is given twice: the one at %s:%d counts", firstFile, firstLine),
	}
}

func (f *file) problems(name string) []Problem {
	var all []Problem
	if f.fault != "" {
		all = append(all, Problem{Kind: fields.Unreadable, File: name, Reason: f.fault + keptText(len(f.fileObjects()))})
	}
	for _, c := range f.chunks {
		for _, b := range c.broken {
			kept := f.keptInstead(b.key)
			p := b.problem(name)
			p.Kind, p.Reason, p.Unenforced = fields.Refused, b.reason+kept, b.security && kept == ""
			all = append(all, p)
		}
		for _, n := range c.notes {
			all = append(all, n.problem(name))
		}
	}
	// Security policies come first, so that they are never left out.
	slices.SortStableFunc(all, func(a, b Problem) int { return -cmp.Compare(rank(&a), rank(&b)) })
	if more := len(all) - maxProblems; more > 0 {
		all = append(all[:maxProblems], Problem{Kind: fields.Unreadable, File: name, Reason: fmt.Sprintf("%d more problems are not shown", more)})
	}
	return all
}

// problem returns the problem of a fault without effect on other parts of the object.
func (f *fault) problem(file string) Problem {
	return Problem{
		Kind: f.kind,
		File: file, Line: f.line, Object: fields.ObjectName(f.key), Key: f.key, Reason: f.reason,
		Unenforced: f.security && !f.closed, Shared: f.shared, Suppress: f.suppress, Security: f.security,
	}
}

// rank returns the importance of a problem; higher is more important.
func rank(p *Problem) int {
	switch {
	case p.Security:
		return 2
	case p.Shared:
		return 0
	}
	return 1
}

// keptInstead names the version in use in place of a broken document.
func (f *file) keptInstead(key snapshot.Key) string {
	if key.Name == "" {
		return keptText(len(f.kept))
	}
	for _, e := range f.kept {
		switch {
		case e.key != key:
		case e.closed:
			return "; " + source.ClosedMeaning
		default:
			return "; its last good version stays in use"
		}
	}
	return ""
}

func keptText(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; the object that it gave before stays in use"
	}
	return fmt.Sprintf("; the %d objects that it gave before stay in use", n)
}

func (r *reader) fileName(p string) string { return filepath.Join(r.dir, filepath.FromSlash(p)) }

// logFirst logs a summary of the first read.
func (r *reader) logFirst(took time.Duration) {
	r.skipped = r.skippedKinds()
	r.log.Info("configuration directory read", "dir", r.dir, "files", len(r.files), "objects", len(r.givers),
		"problems", len(r.Status()), "skipped", r.skipped, "took", took.Round(time.Millisecond))
	clear(r.changed)
}

// logChange logs the changes of a batch in one line, and in a second line the kinds that
// are not read, if these changed.
func (r *reader) logChange(d delta, only string) {
	if len(r.changed) == 0 {
		return
	}
	if d != (delta{}) {
		attrs := []any{"files", len(r.changed)}
		if len(r.changed) == 1 {
			for p := range r.changed {
				attrs = append(attrs, "file", r.fileName(p))
			}
		}
		attrs = append(attrs, "added", d.added, "changed", d.changed, "removed", d.removed)
		if only != "" {
			attrs = append(attrs, "object", only)
		}
		r.log.Info("configuration changed", attrs...)
	}
	if skipped := r.skippedKinds(); skipped != r.skipped {
		r.skipped = skipped
		r.log.Info("kinds that are not read", "dir", r.dir, "skipped", skipped)
	}
	clear(r.changed)
}

func (r *reader) skippedKinds() string {
	skipped := map[snapshot.Kind]int{}
	for _, f := range r.odd {
		for _, c := range f.chunks {
			for kind, n := range c.skipped {
				skipped[kind] += n
			}
		}
	}
	var kinds []string
	for kind, n := range skipped {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, n))
	}
	slices.Sort(kinds)
	return strings.Join(kinds, ", ")
}
