package inject

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Outcome is the result of an injection of one object of a text.
type Outcome struct {
	// Object is the kind and the name of the object, which begins at Line.
	Object string
	Line   int
	Result
}

// Text injects the pods of a text of YAML or JSON documents. All other documents stay as they
// are. in has the defaults of each pod. Errors name the line of the object.
func (i *Injector) Text(ctx context.Context, text []byte, in Pod) ([]byte, []Outcome, error) {
	var out bytes.Buffer
	var outcomes []Outcome
	var errs []error
	for chunk := range yamldoc.Split(text) {
		made, list, err := i.document(ctx, chunk, in)
		errs = append(errs, err)
		outcomes = append(outcomes, list...)
		if out.Len() > 0 && !bytes.HasSuffix(out.Bytes(), []byte("\n")) {
			out.WriteByte('\n')
		}
		out.Write(made)
	}
	return out.Bytes(), outcomes, errors.Join(errs...)
}

// document returns the text of a document with injected pods.
func (i *Injector) document(ctx context.Context, chunk yamldoc.Chunk, in Pod) ([]byte, []Outcome, error) {
	doc, err := yamldoc.Parse(chunk)
	if err != nil || !doc.IsMapping() {
		return chunk.Text, nil, err
	}
	text, err := doc.JSON()
	if err != nil {
		return nil, nil, err
	}
	var object map[string]any
	if err := unmarshal(text, &object); err != nil {
		return nil, nil, err
	}
	w := writer{injector: i, in: in}
	w.object(ctx, object, doc)
	injected := slices.ContainsFunc(w.outcomes, func(o Outcome) bool { return o.Result.Object != nil })
	if !injected || len(w.errs) > 0 {
		return chunk.Text, w.outcomes, errors.Join(w.errs...)
	}
	if text, err = json.Marshal(object); err != nil {
		return nil, nil, err
	}
	if bytes.HasPrefix(bytes.TrimSpace(chunk.Text), []byte("{")) {
		var out bytes.Buffer
		err = json.Indent(&out, text, "", "  ")
		out.WriteByte('\n')
		return out.Bytes(), w.outcomes, err
	}
	if text, err = yaml.JSONToYAML(text); err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(chunk.Text)) {
		if strings.HasPrefix(line, "---") {
			text = append([]byte("---\n"), text...)
			break
		}
	}
	return text, w.outcomes, nil
}

// writer injects the pods of one document, in place.
type writer struct {
	injector *Injector
	in       Pod
	outcomes []Outcome
	errs     []error
}

func (w *writer) object(ctx context.Context, object map[string]any, doc yamldoc.Value) {
	kind, _ := object["kind"].(string)
	if items, ok := object["items"].([]any); ok && strings.HasSuffix(kind, "List") {
		lines, _ := doc.Get("items").Items()
		for n, item := range items {
			if o, ok := item.(map[string]any); ok && n < len(lines) {
				w.object(ctx, o, lines[n])
			}
		}
		return
	}
	path, ok := mesh.PodTemplatePath(kind)
	version, _ := object["apiVersion"].(string)
	if !ok || strings.Contains(strings.SplitN(version, "/", 2)[0], ".") && kind != "DeploymentConfig" {
		return
	}
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	namespace, _ := metadata["namespace"].(string)
	outcome := Outcome{Object: strings.TrimSpace(kind + " " + strings.TrimPrefix(namespace+"/"+name, "/")), Line: doc.Line()}
	pod, at := object, doc
	for i, field := range path {
		at = at.Get(field)
		if pod, ok = pod[field].(map[string]any); !ok {
			fault := "is missing"
			if !at.IsNull() {
				fault = "is not a mapping"
			}
			w.errs = append(w.errs, fmt.Errorf("line %d: %s: %s %s", doc.LineOf(strings.Join(path[:i+1], ".")), outcome.Object, strings.Join(path[:i+1], "."), fault))
			return
		}
	}
	if fault := source.PodFault(at); fault != nil {
		field := strings.Join(append(slices.Clip(path), fault.Field), ".")
		w.errs = append(w.errs, fmt.Errorf("line %d: %s: %s: %w", fault.Line, outcome.Object, strings.Trim(field, "."), fault.Err))
		return
	}
	in := w.in
	in.Object, in.Workload = pod, mesh.Workload{APIVersion: version, Kind: kind, Name: name}
	if kind == "Pod" {
		in.Workload = mesh.Workload{}
	}
	if namespace != "" {
		in.Namespace = namespace
	}
	var err error
	if outcome.Result, err = w.injector.Inject(ctx, in); err != nil {
		w.errs = append(w.errs, fmt.Errorf("line %d: %s: %w", outcome.Line, outcome.Object, err))
		return
	}
	w.outcomes = append(w.outcomes, outcome)
	if outcome.Result.Object == nil {
		return
	}
	for _, field := range []string{"metadata", "spec"} {
		pod[field] = outcome.Result.Object[field]
	}
}
