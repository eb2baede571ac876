package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// A template of the Values is a patch of a pod in YAML. Its texts may have expressions of Go
// templates in a small subset. They are replaced after the YAML is parsed, so that the metadata
// of a pod cannot change the structure of the patch.

// addTemplates adds the templates of the Values.
func (i *Injector) addTemplates() error {
	var errs []error
	given := i.Values.SidecarInjectorWebhook.Templates
	for _, name := range slices.Sorted(maps.Keys(given)) {
		made, err := parseTemplate(given[name])
		if err == nil { // without a pod all expressions are empty
			_, err = made(&injection{Injector: i, pod: &corev1.Pod{}})
		}
		if _, taken := builtIn[name]; taken {
			err = errors.New("is the name of a built-in template: choose another one, and list both in " + mesh.AnnotationTemplates)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("config: templates: %s: %w", name, err))
			continue
		}
		i.templates[name] = made
	}
	for _, name := range i.Values.SidecarInjectorWebhook.DefaultTemplates {
		if i.templates[name] == nil {
			errs = append(errs, fmt.Errorf("config: defaultTemplates: there is no template %q", name))
		}
	}
	return errors.Join(errs...)
}

// parseTemplate returns the template in a text.
func parseTemplate(text string) (template, error) {
	doc, err := yamldoc.ParseOnly([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%w; put expressions into single quotes", err)
	}
	for _, field := range doc.Keys() {
		if field != "metadata" && field != "spec" {
			return nil, fmt.Errorf("field %q: a template has metadata and spec of a pod", field)
		}
	}
	data, err := doc.JSON()
	if err != nil {
		return nil, err
	}
	checked, err := Decode(data)
	if err != nil {
		return nil, err
	}
	if err := checkExpressions(checked); err != nil {
		return nil, err
	}
	return func(p *injection) (_ map[string]any, err error) {
		defer func() { // a template of a user must not end the control plane
			if fault := recover(); fault != nil {
				err = fmt.Errorf("the template has a form that meshctl does not understand: %v", fault)
			}
		}()
		patch, err := Decode(data)
		if err != nil {
			return nil, err
		}
		p.fill(patch)
		p.followNative(patch)
		text, err := json.Marshal(patch)
		if err != nil {
			return nil, err
		}
		return patch, decodeKube(text, &struct {
			Spec corev1.PodSpec `json:"spec"`
		}{}) // the fields that it sets have the form of a pod
	}, nil
}

var (
	// expression matches an expression, and reference the expressions that are known.
	expression = regexp.MustCompile(`\{\{-?\s*(.*?)\s*-?\}\}`)
	reference  = regexp.MustCompile(`^(?:index \.ObjectMeta\.(Labels|Annotations) "([^"]+)"|\.([A-Za-z.]+))(?: \| default "([^"]*)")?$`)
)

// knownFields are the fields that expressions may name.
var knownFields = map[string]func(*injection) string{
	"ObjectMeta.Name":          func(p *injection) string { return p.pod.Name },
	"ObjectMeta.Namespace":     func(p *injection) string { return p.namespace },
	"DeploymentMeta.Name":      func(p *injection) string { return p.workload.Name },
	"DeploymentMeta.Namespace": func(p *injection) string { return p.namespace },
	"TypeMeta.Kind":            func(p *injection) string { return p.workload.Kind },
	"Spec.ServiceAccountName":  func(p *injection) string { return p.pod.Spec.ServiceAccountName },
	"Revision":                 func(p *injection) string { return p.revision() },
	"ProxyImage":               func(p *injection) string { return p.image() },
}

// checkExpressions checks the expressions in all texts below a value, as fill replaces them.
func checkExpressions(value any) error {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if expression.MatchString(name) {
				return fmt.Errorf("field %q: names of fields may not have expressions", name)
			}
			if err := checkExpressions(v[name]); err != nil {
				return err
			}
		}
	case []any:
		for i := range v {
			if err := checkExpressions(v[i]); err != nil {
				return err
			}
		}
	case string:
		for _, m := range expression.FindAllStringSubmatch(v, -1) {
			r := reference.FindStringSubmatch(m[1])
			if r == nil || r[3] != "" && knownFields[r[3]] == nil {
				return fmt.Errorf("expression %q is not supported: want .%s, index .ObjectMeta.Labels \"NAME\" or index .ObjectMeta.Annotations \"NAME\", each also with | default \"TEXT\"",
					m[0], strings.Join(slices.Sorted(maps.Keys(knownFields)), ", ."))
			}
		}
	}
	return nil
}

// fill replaces the expressions in all texts below a value, and returns the value.
func (p *injection) fill(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for name := range v {
			v[name] = p.fill(v[name])
		}
	case []any:
		for i := range v {
			v[i] = p.fill(v[i])
		}
	case string:
		return expression.ReplaceAllStringFunc(v, func(text string) string {
			r := reference.FindStringSubmatch(expression.FindStringSubmatch(text)[1])
			out := ""
			switch r[1] {
			case "Labels":
				out = p.pod.Labels[r[2]]
			case "Annotations":
				out = p.annotation(r[2])
			default:
				out = knownFields[r[3]](p)
			}
			if out == "" {
				out = r[4]
			}
			return out
		})
	}
	return value
}

// followNative moves the container of the proxy in a patch to the init containers if the
// sidecar is native.
func (p *injection) followNative(patch map[string]any) {
	all := containersOf(patch, appContainers)
	at := slices.IndexFunc(all, func(c map[string]any) bool { return c["name"] == proxyContainer })
	if at < 0 || !p.native() || !slices.Contains(p.templates, sidecarTemplate) && !p.proxyless() {
		return
	}
	setContainers(patch, initContainers, append(containersOf(patch, initContainers), all[at]))
	setContainers(patch, appContainers, slices.Delete(all, at, at+1))
}
