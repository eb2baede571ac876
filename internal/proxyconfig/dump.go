// Package proxyconfig turns the output of Envoy's admin interface, /config_dump and
// /clusters?format=json, into rows of tables and proto JSON.
//
// Dumps come from any source and may be large or hostile. The package reads them as a
// stream, one resource at a time, and skips excluded parts. Member names may be in both
// spellings of proto JSON (host_statuses, hostStatuses). Extensions that this build does
// not know are no error: rows ignore them, JSON has them as they are in the dump.
package proxyconfig

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxResource bounds one resource of a dump, in bytes. It is in memory while it is read.
const maxResource = 64 << 20

// dump is a stream of JSON tokens with a bound on the size of one value.
type dump struct {
	*jsontext.Decoder
	in *boundedReader
}

func newDump(r io.Reader) *dump {
	in := &boundedReader{r: r, left: -1}
	return &dump{jsontext.NewDecoder(in), in}
}

// boundedReader fails when left is used up, unless left is negative.
type boundedReader struct {
	r    io.Reader
	left int
}

var errResourceSize = fmt.Errorf("one resource of it has more than %d MiB", maxResource>>20)

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errResourceSize
	}
	n, err := b.r.Read(p)
	if b.left > 0 {
		b.left = max(b.left-n, 0)
	}
	return n, err
}

// resource reads the next value. The result is valid until the next read.
func (d *dump) resource() (jsontext.Value, error) {
	d.in.left = maxResource
	defer func() { d.in.left = -1 }()
	return d.ReadValue()
}

// object reads an object. It calls member after each name, in snake case, to read or skip
// the value.
func (d *dump) object(member func(name string) error) error {
	if err := d.begin(jsontext.KindBeginObject, "an object"); err != nil {
		return err
	}
	for d.PeekKind() == jsontext.KindString {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		if err := member(snakeCase(name.String())); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// array reads an array. It calls item before each item, to read or skip it.
func (d *dump) array(item func() error) error {
	if err := d.begin(jsontext.KindBeginArray, "an array"); err != nil {
		return err
	}
	for {
		switch d.PeekKind() {
		case jsontext.KindEndArray, jsontext.KindInvalid:
			_, err := d.ReadToken()
			return err
		}
		if err := item(); err != nil {
			return err
		}
	}
}

func (d *dump) begin(kind jsontext.Kind, want string) error {
	tok, err := d.ReadToken()
	if err == nil && tok.Kind() != kind {
		err = fmt.Errorf("%s is %s, want %s", place(d.StackPointer()), kindName(tok.Kind()), want)
	}
	return err
}

// text reads a string.
func (d *dump) text() (string, error) {
	tok, err := d.ReadToken()
	if err != nil {
		return "", err
	}
	if tok.Kind() != jsontext.KindString {
		return "", fmt.Errorf("%s is %s, want a string", place(d.StackPointer()), kindName(tok.Kind()))
	}
	return tok.String(), nil
}

func place(p jsontext.Pointer) string {
	if p == "" {
		return "the document"
	}
	return string(p)
}

func kindName(k jsontext.Kind) string {
	switch k {
	case jsontext.KindBeginObject:
		return "an object"
	case jsontext.KindBeginArray:
		return "an array"
	case jsontext.KindString, jsontext.KindNumber:
		return "a " + k.String()
	}
	return k.String()
}

// snakeCase converts hostStatuses to host_statuses.
func snakeCase(name string) string {
	if strings.ToLower(name) == name {
		return name
	}
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; c >= 'A' && c <= 'Z' {
			b.WriteByte('_')
			b.WriteByte(c + 'a' - 'A')
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// The documents of the admin interface, by their only member.
const (
	configDumpMember = "configs"
	clustersMember   = "cluster_statuses"
)

// document reads a whole document and calls body at the value of the named member. what
// names the wanted rows in errors.
func (d *dump) document(what, member string, body func() error) error {
	other, found := "", false
	err := d.object(func(name string) error {
		switch name {
		case member:
			found = true
			return body()
		case configDumpMember:
			return fmt.Errorf("this is a config dump, %s are read from /clusters?format=json", what)
		case clustersMember:
			path := "/config_dump"
			if what == overviewWhat || what == assignmentSection.what {
				path += "?include_eds"
			}
			return fmt.Errorf("this is the output of /clusters, %s are read from %s", what, path)
		}
		other = name
		return d.SkipValue()
	})
	if err == nil {
		if _, err = d.ReadToken(); err == nil {
			return errors.New("there is something behind the end of the dump")
		}
	}
	if errors.Is(err, io.EOF) && other != "" && !found && d.InputOffset() > 0 {
		return fmt.Errorf("this is no dump of Envoy: it has no %q but %q", member, other)
	}
	return d.ended(err)
}

// ended returns the error of reading a document, nil at its end.
func (d *dump) ended(err error) error {
	switch {
	case errors.Is(err, io.EOF) && d.InputOffset() > 0:
		return nil
	case errors.Is(err, io.EOF):
		return errors.New("the dump is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the dump is truncated: it ends after %d bytes", d.InputOffset()+int64(len(d.UnreadBuffer())))
	}
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		if line, _, _ := bytes.Cut(d.UnreadBuffer(), []byte("\n")); d.InputOffset() == 0 && bytes.Count(line, []byte("::")) >= 2 {
			return errors.New("this is the text of /clusters: want the JSON of /clusters?format=json, or of /config_dump?include_eds")
		}
		if errors.Is(err, errResourceSize) {
			return fmt.Errorf("%w: %s", errResourceSize, syntax.JSONPointer)
		}
		return fmt.Errorf("the dump is not valid JSON: %s", strings.TrimPrefix(err.Error(), "jsontext: "))
	}
	return err
}

// section is one kind of configuration in a config dump.
type section struct {
	what    string // plural, for errors
	typeURL string // of the configuration
	// paths are the paths from an item of each list to the resource.
	paths map[string][]string
	// single reports whether there is one item instead of each list.
	single bool
	// why is the reason for a missing section, for errors; empty if Envoy omits an empty
	// one.
	why string
}

// read calls fn with each resource of the section, in the order of the dump, and with the
// name of its list. The resource is valid until fn returns.
func (s *section) read(r io.Reader, fn func(list string, resource jsontext.Value) error) error {
	found, err := readSections(r, s.what, []*section{s}, func(_ *section, list string, resource jsontext.Value) error {
		return fn(list, resource)
	})
	if err == nil && !found[s] {
		return s.missing()
	}
	return err
}

func (s *section) missing() *MissingError { return &MissingError{s.what, s.typeURL, s.why} }

// MissingError reports that a config dump has no section of a kind.
type MissingError struct {
	What string // of what, plural
	Type string // the type URL of the section
	// Why is the request that omits the section; empty if Envoy has nothing of the kind.
	Why string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("config dump has no configuration type %s: %s", e.Type, e.Reason())
}

// Reason returns the reason for the missing section.
func (e *MissingError) Reason() string {
	return cmp.Or(e.Why, "an Envoy without "+e.What+" leaves it out")
}

// readSections calls fn with each resource of the sections, in the order of the dump, and
// returns the sections that are there. The resource is valid until fn returns. what names
// the wanted rows in errors.
func readSections(r io.Reader, what string, sections []*section, fn func(s *section, list string, resource jsontext.Value) error) (map[*section]bool, error) {
	d := newDump(r)
	found := make(map[*section]bool)
	err := d.document(what, configDumpMember, func() error {
		return d.array(func() error {
			var in *section
			first := true
			return d.object(func(name string) error {
				if first {
					first = false
					if name != "@type" {
						return fmt.Errorf(`%s does not begin with "@type"`, d.StackPointer().Parent())
					}
					url, err := d.text()
					if i := slices.IndexFunc(sections, func(s *section) bool { return s.typeURL == url }); i >= 0 {
						in = sections[i]
						found[in] = true
					}
					return err
				}
				if in == nil {
					return d.SkipValue()
				}
				return in.list(d, name, func(list string, resource jsontext.Value) error { return fn(in, list, resource) })
			})
		})
	})
	return found, err
}

// list calls fn with each resource of a list of the section, and skips other members.
func (s *section) list(d *dump, name string, fn func(list string, resource jsontext.Value) error) error {
	path, ok := s.paths[name]
	if !ok {
		return d.SkipValue()
	}
	item := func() error {
		return d.follow(path, func(v jsontext.Value) error { return fn(name, v) })
	}
	if s.single {
		return item()
	}
	return d.array(item)
}

// readAlone is read for a section without the dump around it, as pc -o json writes it.
func (s *section) readAlone(r io.Reader, fn func(list string, resource jsontext.Value) error) error {
	d := newDump(r)
	err := d.object(func(name string) error { return s.list(d, name, fn) })
	if err == nil {
		if _, err = d.ReadToken(); err == nil {
			return errors.New("there is something behind the end of the secrets")
		}
	}
	return d.ended(err)
}

// follow descends through members of objects and calls fn with the value at the end of
// the path, if it exists.
func (d *dump) follow(path []string, fn func(jsontext.Value) error) error {
	if len(path) == 0 {
		v, err := d.resource()
		if err != nil {
			return err
		}
		at := d.StackPointer()
		if err := fn(v); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		return nil
	}
	return d.object(func(name string) error {
		if name == path[0] {
			return d.follow(path[1:], fn)
		}
		return d.SkipValue()
	})
}
