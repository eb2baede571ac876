package dir

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Problem is something in the directory that is not used.
type Problem struct {
	// File is the path, which starts with that of the directory.
	File string
	// Line is the line of the faulty field, from 1; 0 for the file as a whole.
	Line int
	// Object is kind and namespace/name; empty when it is not known.
	Object string
	// Reason says what is wrong and what is used instead.
	Reason string
	// Since is when the problem was first seen.
	Since time.Time
}

// maxProblems is how many problems of one file are shown.
const maxProblems = 100

const emptyFile = "the file is empty, as while it is being written"

// Status returns the problems by file and line. It may be called from any
// goroutine; the result must not be changed.
func (s *Source) Status() []Problem {
	if p := s.status.Load(); p != nil {
		return *p
	}
	return nil
}

// publish hands the changes over, then tells about problems.
func (r *reader) publish() {
	r.load()
	if events := r.take(); len(events) > 0 {
		r.sink.Apply(events)
		r.log.Debug("objects changed", "dir", r.dir, "objects", len(events), "first", events[0].Key.String())
		r.tellNoEffect(events)
	}
	r.report()
}

// tellNoEffect says once of each object that generation does not use it yet.
func (r *reader) tellNoEffect(events []snapshot.Event) {
	for _, e := range events {
		switch e.Key.Kind {
		case snapshot.KindDestinationRule, snapshot.KindVirtualService, snapshot.KindServiceEntry:
		default:
			continue
		}
		if e.Object == nil {
			delete(r.told, e.Key)
			continue
		}
		if !r.told[e.Key] {
			r.told[e.Key] = true
			giver := r.givers[e.Key][0]
			r.log.Info("object has no effect yet", "object", objectName(e.Key), "file", r.fileName(giver.path), "line", giver.line)
		}
	}
}

// report publishes the problems and logs those that came or went.
func (r *reader) report() {
	now := r.now()
	problems := r.problems()
	type identity struct{ file, object, reason string } // a line may move
	before := map[identity][]time.Time{}
	for _, p := range r.Status() {
		id := identity{p.File, p.Object, p.Reason}
		before[id] = append(before[id], p.Since)
	}
	for i := range problems {
		p := &problems[i]
		id := identity{p.File, p.Object, p.Reason}
		if since := before[id]; len(since) > 0 {
			p.Since, before[id] = since[0], since[1:]
			continue
		}
		p.Since = now
		if !isTransient(p.Reason) {
			r.log.Warn("configuration is not used", "file", p.File, "line", p.Line, "object", p.Object, "reason", p.Reason)
		}
	}
	for id, left := range before {
		if len(left) > 0 && !isTransient(id.reason) {
			r.log.Info("problem of the configuration is gone", "file", id.file, "object", id.object, "reason", id.reason)
		}
	}
	r.status.Store(&problems)
}

// isTransient keeps what is normal while a file is written out of the log.
func isTransient(reason string) bool { return strings.HasPrefix(reason, emptyFile) }

func (r *reader) problems() []Problem {
	var all []Problem
	for p, why := range r.faults {
		all = append(all, Problem{File: r.fileName(p), Reason: why})
	}
	for _, f := range r.files {
		if f.fault != "" || f.broken() || f.noted() {
			all = append(all, f.problems(r.fileName(f.path))...)
		}
	}
	for key := range r.doubles {
		first := r.givers[key][0]
		for _, e := range r.givers[key][1:] {
			all = append(all, Problem{
				File: r.fileName(e.path), Line: e.line, Object: objectName(key),
				Reason: fmt.Sprintf("is given twice: the one at %s:%d counts", r.fileName(first.path), first.line),
			})
		}
	}
	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Object, b.Object), cmp.Compare(a.Reason, b.Reason))
	})
	return all
}

func (f *file) problems(name string) []Problem {
	var all []Problem
	if f.fault != "" {
		all = append(all, Problem{File: name, Reason: f.fault + keptText(len(f.entries()))})
	}
	for _, c := range f.chunks {
		for _, b := range c.broken {
			all = append(all, Problem{File: name, Line: b.line, Object: objectName(b.key), Reason: b.reason + f.keptInstead(b.key)})
		}
		for _, n := range c.notes {
			all = append(all, Problem{File: name, Line: n.line, Object: objectName(n.key), Reason: n.reason})
		}
	}
	if more := len(all) - maxProblems; more > 0 {
		all = append(all[:maxProblems], Problem{File: name, Reason: fmt.Sprintf("%d more problems are not shown", more)})
	}
	return all
}

// keptInstead says what is used in the place of a broken document.
func (f *file) keptInstead(key snapshot.Key) string {
	if key.Name == "" {
		return keptText(len(f.kept))
	}
	for _, e := range f.kept {
		if e.key == key {
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

func objectName(k snapshot.Key) string {
	switch {
	case k.Kind == "" || k.Name == "":
		return string(k.Kind)
	case k.Namespace == "":
		return string(k.Kind) + " " + k.Name
	}
	return string(k.Kind) + " " + k.Namespace + "/" + k.Name
}

func (r *reader) fileName(p string) string { return filepath.Join(r.dir, filepath.FromSlash(p)) }

// logFirst sums the first reading up.
func (r *reader) logFirst(took time.Duration) {
	skipped := map[snapshot.Kind]int{}
	for _, f := range r.files {
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
	r.log.Info("configuration directory read", "dir", r.dir, "files", len(r.files), "objects", len(r.givers),
		"problems", len(r.Status()), "skipped", strings.Join(kinds, ", "), "took", took.Round(time.Millisecond))
}
