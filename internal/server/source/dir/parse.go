package dir

import (
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// Parse converts the objects of one text of YAML, as a Source does with a file. name is
// the name of the file in places and problems. The second of two objects of one name is a
// problem.
func Parse(conv *source.Converter, name string, text []byte) (events []snapshot.Event, problems []Problem) {
	parsed, jobs := newParsedFile(name, nil, text, nil)
	p := parser{conv: conv}
	p.add(name, jobs)
	p.finish()
	f := parsed.finish(nil)
	problems = f.problems(name)
	first := make(map[snapshot.Key]int)
	for _, o := range f.fileObjects() {
		if line, twice := first[o.key]; twice {
			problems = append(problems, repeated(name, o, name, line))
			continue
		}
		first[o.key] = o.line
		if o.object != nil {
			events = append(events, snapshot.Event{Key: o.key, Object: o.object})
		}
	}
	return events, problems
}
