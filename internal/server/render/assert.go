package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Expectation is a statement about one resource of a proxy.
type Expectation struct {
	Proxy   string `json:"proxy"`   // name.namespace
	Cluster string `json:"cluster"` // of the proxy; empty means any
	Type    string `json:"type"`    // singular, such as listener
	Name    string `json:"name"`    // of the resource
	// Path is a JSONPath in the resource. Empty means the resource itself.
	Path string `json:"path"`
	// Value is the expected value at the path. Without Value, anything must be there, or
	// with Absent nothing.
	Value  json.RawMessage `json:"value"`
	Absent bool            `json:"absent"`

	Line int `json:"-"`
}

// maxExpectations bounds the expectations of a file.
const maxExpectations = 10000

// ReadExpectations reads a YAML list of expectations. An error names the line.
func ReadExpectations(data []byte) ([]Expectation, error) {
	doc, err := yamldoc.ParseOnly(data)
	if err != nil {
		return nil, err
	}
	items, ok := doc.Items()
	switch {
	case !ok:
		return nil, errors.New("want a list of expectations")
	case len(items) > maxExpectations:
		return nil, fmt.Errorf("it has %d expectations, at most %d are accepted", len(items), maxExpectations)
	}
	var out []Expectation
	for _, item := range items {
		var e Expectation
		text, err := item.JSON()
		if err == nil {
			d := json.NewDecoder(bytes.NewReader(text))
			d.DisallowUnknownFields()
			if err = d.Decode(&e); err != nil {
				err = errors.New(strings.TrimPrefix(err.Error(), "json: "))
			}
		}
		if err == nil {
			err = e.validate()
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", item.Line(), err)
		}
		e.Line = item.Line()
		out = append(out, e)
	}
	return out, nil
}

func (e *Expectation) validate() error {
	switch {
	case e.Proxy == "":
		return errors.New("proxy is missing: want name.namespace")
	case !slices.Contains(Types(), e.Type):
		return fmt.Errorf("type %q: want %s", e.Type, strings.Join(Types(), ", "))
	case e.Name == "" && !isSingle(e.Type):
		return fmt.Errorf("name of the %s is missing", e.Type)
	case e.Absent && e.Value != nil:
		return errors.New("value and absent exclude each other")
	}
	_, err := output.Find(e.Path, map[string]any{})
	if e.Path == "" {
		err = nil
		if e.Value != nil {
			return errors.New("path of the value is missing")
		}
	}
	return err
}

// String names the subject.
func (e *Expectation) String() string {
	text := fmt.Sprintf("%s: %s %s", e.Proxy, e.Type, e.Name)
	if e.Path != "" {
		text += " " + e.Path
	}
	return text
}

// check returns how the proxy differs from the expectation, empty if it does not.
func (e *Expectation) check(p *Resources) (string, error) {
	resource, near, err := p.find(e.Type, e.Name)
	if err != nil {
		return "", err
	}
	if resource == nil {
		if e.Absent {
			return "", nil
		}
		return "is absent" + near, nil
	}
	found := []any{resource}
	if e.Path != "" {
		if found, err = output.Find(e.Path, resource); err != nil {
			return "", err
		}
	}
	switch {
	case e.Absent && len(found) > 0 && e.Path == "":
		return "is present", nil
	case e.Absent && len(found) > 0:
		return "is present:\n" + show(found), nil
	case e.Absent, e.Value == nil && len(found) > 0:
		return "", nil
	case len(found) == 0:
		return "is absent", nil
	}
	var want any
	if err := json.Unmarshal(e.Value, &want); err != nil {
		return "", err
	}
	if before, after := show([]any{want}), show(found); before != after {
		return "differs (-want +got):\n" + output.UnifiedDiff(before, after), nil
	}
	return "", nil
}

// show returns values as YAML: one as itself, several as a list.
func show(values []any) string {
	var v any = values
	if len(values) == 1 {
		v = values[0]
	}
	text, err := yaml.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(string(text), "\n")
}

// Check checks expectations, and calls fail with each that fails and how the proxy differs.
// It returns their number. Proxies are the named nodes or workloads of the mesh.
func (m *Mesh) Check(list []Expectation, named []Node, fail func(e *Expectation, difference string)) (failed int, err error) {
	known := make(map[[2]string]*Resources)
	resources := func(e *Expectation) (*Resources, error) {
		i := slices.IndexFunc(named, func(n Node) bool {
			return nameOf(n) == e.Proxy && (e.Cluster == "" || clusterOf(n) == e.Cluster)
		})
		var node Node
		if i >= 0 {
			node = named[i]
		} else if node, err = m.Node(e.Proxy, mesh.ClusterID(e.Cluster)); err != nil {
			return nil, err
		}
		p, err := m.Proxy(node)
		if err != nil {
			return nil, err
		}
		return p.Resources()
	}
	for i := range list {
		e := &list[i]
		id := [2]string{e.Proxy, e.Cluster}
		if known[id] == nil {
			if known[id], err = resources(e); err != nil {
				return failed, fmt.Errorf("line %d: %w", e.Line, err)
			}
		}
		difference, err := e.check(known[id])
		if err != nil {
			return failed, fmt.Errorf("line %d: %w", e.Line, err)
		}
		if difference != "" {
			failed++
			fail(e, difference)
		}
	}
	return failed, nil
}
