package checkcmd

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/dir"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// report writes the findings, and returns the result of the command. Findings at least as
// severe as failing are a failure.
func report(env *cli.Env, format output.Format, found []analyze.Finding, failing analyze.Level) error {
	reports := analyze.Reports(found)
	t := &output.Table{Header: []string{"LEVEL", "CODE", "OBJECT", "PLACE", "MESSAGE"}, Gap: 3, Name: "OBJECT"}
	if format.Wide() {
		t.Header = append(t.Header, "NAME", "DOCUMENTATION")
	}
	count := map[analyze.Level]int{}
	failed := false
	for i := range reports {
		s := &reports[i]
		count[s.Level]++
		failed = failed || s.Level.AtLeast(failing)
		place := s.Reference
		if place == "" && s.Cluster != "" {
			place = "cluster " + string(s.Cluster)
		}
		row := []string{string(s.Level), string(s.Code), cli.OrDash(s.Origin), cli.OrDash(place), s.Text()}
		if format.Wide() {
			row = append(row, s.Name, s.Documentation)
		}
		t.Rows = append(t.Rows, row)
	}
	if len(found) > 0 || !format.ForPeople() {
		if err := cli.WriteResult(env, format, reports, t); err != nil {
			return err
		}
	}
	summary := strings.Join([]string{
		cli.Plural(count[analyze.Error], "error"), cli.Plural(count[analyze.Warning], "warning"), cli.Plural(count[analyze.Info], "remark"),
	}, ", ")
	switch {
	case failed:
		return cli.Findingsf("%s", summary)
	case len(found) > 0:
		env.Notef("%s", summary)
	default:
		env.Notef("nothing found")
	}
	return nil
}

// readPaths returns the directories, and the content of files; - is standard input.
func readPaths(env *cli.Env, paths []string) (dirs []string, read []load.File, err error) {
	for _, p := range paths {
		if p == "-" {
			text, err := io.ReadAll(io.LimitReader(env.Stdin, dir.MaxFileSize+1))
			switch {
			case err != nil:
				return nil, nil, fmt.Errorf("read standard input: %w", err)
			case len(text) > dir.MaxFileSize:
				return nil, nil, fmt.Errorf("standard input has more than %d bytes", dir.MaxFileSize)
			}
			read = append(read, load.File{Name: "standard input", Text: text})
			continue
		}
		if info, err := os.Stat(p); err == nil && info.IsDir() {
			dirs = append(dirs, p)
			continue
		}
		text, err := files.Read(p, dir.MaxFileSize)
		if err != nil {
			return nil, nil, err
		}
		read = append(read, load.File{Name: p, Text: text})
	}
	return dirs, read, nil
}

// suppressions select findings that are ignored.
type suppressions []suppression

type suppression struct{ code, object string }

// parseSuppressions parses values of --suppress.
func parseSuppressions(values []string) (suppressions, error) {
	var out suppressions
	for _, v := range values {
		code, object, ok := strings.Cut(v, "=")
		_, err := path.Match(object, "")
		switch {
		case !ok || object == "" || err != nil:
			return nil, cli.Usagef("--suppress: %q is not CODE=KIND NAME.NAMESPACE, as in %q", v, "IST0101=VirtualService reviews.default")
		case code != "*" && analyze.KindOf(analyze.Code(code)) == (analyze.Kind{}):
			return nil, cli.Usagef("--suppress: there is no code %q: docs/analyze.md lists them", code)
		}
		out = append(out, suppression{code, object})
	}
	return out, nil
}

func (s suppressions) match(f *analyze.Finding) bool {
	name := strings.TrimSuffix(fmt.Sprintf("%s %s.%s", f.Object.Kind, f.Object.Name, f.Object.Namespace), ".")
	return slices.ContainsFunc(s, func(one suppression) bool {
		matches, _ := path.Match(one.object, name) // checked by parseSuppressions
		return (one.code == "*" || strings.EqualFold(one.code, string(f.Code))) && matches
	})
}

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
