package install

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/inject"
	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Place is a place in a file of values.
type Place struct {
	File string
	Line int // 0 for a flag
	Path string
}

// String returns text such as mesh.yaml:12: spec.values.global.proxy.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.Path
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Path)
}

// Read sets values from a file: one IstioOperator, or the Helm values of Istio's charts
// base and istiod. It returns the values of the file that have no effect.
func (v *Values) Read(file string, data []byte) (unsupported []Place, err error) {
	doc, err := yamldoc.ParseOnly(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	r := &reader{values: v, file: file}
	kind := doc.Get("kind").Text()
	switch {
	case doc.IsNull():
		return nil, fmt.Errorf("%s: it has no values", file)
	case kind == "IstioOperator":
		r.operator(doc)
	case kind != "":
		return nil, fmt.Errorf("%s: kind %s, want IstioOperator or Helm values", file, kind)
	default:
		r.fields(doc, "", r.helmValues())
	}
	return r.unsupported, errors.Join(r.errs...)
}

// Set sets one value, from PATH=VALUE with a path in the spec of an IstioOperator, such as
// values.global.meshID=mesh1. A backslash before a dot makes it part of a name. Where the value may
// be a text, it is the text as typed, so that 1.10 and on stay what they are; elsewhere it is YAML.
func (v *Values) Set(assignment string) (unsupported []Place, err error) {
	path, text, ok := strings.Cut(assignment, "=")
	names := splitPath(path)
	if !ok || path == "" {
		return nil, fmt.Errorf("%q: want PATH=VALUE, as in values.global.meshID=mesh1", assignment)
	}
	for _, name := range names {
		if name == "" || strings.Contains(name, "[") {
			return nil, fmt.Errorf("%s: it has an empty name or an index; set lists in a file", path)
		}
	}
	value, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if scalar := value[0] != '{' && value[0] != '['; scalar && string(value) != "null" {
		typed, err := json.Marshal(text)
		if err != nil {
			return nil, err
		}
		if unsupported, err = v.setJSON(names, typed); err == nil {
			return unsupported, nil
		}
	}
	return v.setJSON(names, value)
}

// setJSON sets the value at the path, and nothing if there is an error.
func (v *Values) setJSON(names []string, value []byte) (unsupported []Place, err error) {
	for _, name := range slices.Backward(names) {
		quoted, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		value = fmt.Appendf(nil, "{%s: %s}", quoted, value)
	}
	doc, err := yamldoc.ParseOnly(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(names, "."), err)
	}
	changed := *v
	r := &reader{values: &changed, file: "--set", flag: true}
	r.fields(doc, "", r.spec())
	if err := errors.Join(append(r.errs, changed.checkTypes())...); err != nil {
		return nil, err
	}
	*v = changed
	return r.unsupported, nil
}

// checkTypes returns the faults in the types of the values that the proxies and the control plane
// read.
func (v *Values) checkTypes() error {
	config, err := json.Marshal(v.MeshConfig)
	if err != nil {
		return err
	}
	if len(v.MeshConfig) > 0 {
		if err := istiojson.Unmarshal(protojson.UnmarshalOptions{DiscardUnknown: true}, config, &meshv1alpha1.MeshConfig{}); err != nil {
			return fmt.Errorf("meshConfig: %s", istiojson.Reason(err))
		}
	}
	values, err := json.Marshal(v.Injector)
	if err != nil {
		return err
	}
	_, err = inject.ParseValues(string(values), "")
	return err
}

// splitPath splits a path at its dots.
func splitPath(path string) []string {
	const dot = "\x00"
	names := strings.Split(strings.ReplaceAll(path, `\.`, dot), ".")
	for i := range names {
		names[i] = strings.ReplaceAll(names[i], dot, ".")
	}
	return names
}

// reader reads values. It goes on after an error, to report all of them.
type reader struct {
	values      *Values
	file        string
	flag        bool // the file is a flag and has no lines
	hub, tag    string
	pilot       bool // the file enables or disables the control plane
	unsupported []Place
	errs        []error
}

// field reads the value at a path.
type field func(at yamldoc.Value, path string)

func (r *reader) place(at yamldoc.Value, path string) Place {
	p := Place{File: r.file, Path: path}
	if !r.flag {
		p.Line = at.Line()
	}
	return p
}

func (r *reader) fail(at yamldoc.Value, path, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s", r.place(at, path), fmt.Sprintf(format, args...)))
}

// fields reads a mapping. Names that known lacks are unsupported.
func (r *reader) fields(at yamldoc.Value, path string, known map[string]field) {
	if at.IsNull() {
		return
	}
	if !at.IsMapping() {
		r.fail(at, cmp.Or(path, "the values"), "want a mapping")
		return
	}
	for _, name := range at.Keys() {
		value, inner := at.Get(name), strings.TrimPrefix(path+"."+name, ".")
		switch read := known[name]; {
		case value.IsNull(): // not set
		case read != nil:
			read(value, inner)
		case !empty(value):
			r.unsupported = append(r.unsupported, r.place(value, inner))
		}
	}
}

// empty reports whether a value configures nothing. Charts have empty texts as defaults.
func empty(v yamldoc.Value) bool {
	items, list := v.Items()
	return isEmptyText(v) || v.IsMapping() && len(v.Keys()) == 0 || list && len(items) == 0
}

func isEmptyText(v yamldoc.Value) bool {
	_, list := v.Items()
	return !list && !v.IsMapping() && v.Text() == ""
}

// unlessEmpty returns a field for which an empty text, the default in many charts, means not set.
func unlessEmpty(f field) field {
	return func(at yamldoc.Value, path string) {
		if !isEmptyText(at) {
			f(at, path)
		}
	}
}

// in returns the field for a mapping.
func (r *reader) in(known map[string]field) field {
	return func(at yamldoc.Value, path string) { r.fields(at, path, known) }
}

func (r *reader) text(p *string) field {
	return unlessEmpty(func(at yamldoc.Value, path string) {
		if _, list := at.Items(); list || at.IsMapping() {
			r.fail(at, path, "want a text")
			return
		}
		*p = at.Text()
	})
}

func (r *reader) boolean(p *bool) field {
	return unlessEmpty(func(at yamldoc.Value, path string) {
		value, err := strconv.ParseBool(at.Text())
		if err != nil {
			r.fail(at, path, "want true or false")
			return
		}
		*p = value
	})
}

func (r *reader) number(p *int32) field {
	return unlessEmpty(func(at yamldoc.Value, path string) {
		value, err := strconv.ParseInt(at.Text(), 10, 32)
		if err != nil || value < 0 {
			r.fail(at, path, "want a number of at least 0")
			return
		}
		*p = int32(value)
	})
}

// only accepts one of the values, which change nothing.
func (r *reader) only(values ...string) field {
	return unlessEmpty(func(at yamldoc.Value, path string) {
		for _, v := range values {
			if at.Text() == v {
				return
			}
		}
		r.unsupported = append(r.unsupported, r.place(at, path+": "+cmp.Or(at.Text(), "…")))
	})
}

// decoded reads a value into the type of a Kubernetes field.
func decoded[T any](r *reader, p *T) field {
	return unlessEmpty(func(at yamldoc.Value, path string) {
		text, err := at.JSON()
		var value T
		if err == nil {
			text, err = yamldoc.WithoutNulls(text)
		}
		if err == nil {
			err = yaml.UnmarshalStrict(text, &value)
		}
		if err != nil {
			r.fail(at, path, "%v", err)
			return
		}
		*p = value
	})
}
