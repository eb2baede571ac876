package inject

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/template/parse"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/meshctl/meshctl/internal/yamldoc"
)

// A template of the settings is a Go template, as in Istio. Its result is a patch of a pod in YAML.
// It reads the pod, whose author may write any text into labels and annotations. So the author can
// change the patch, but only in the own pod, where the same fields could be written at once.

// addTemplates adds the templates of the Values. They replace built-in templates of the same name.
func (i *Injector) addTemplates() error {
	var errs []error
	given := i.Values.SidecarInjectorWebhook.Templates
	if len(given) > 0 {
		for _, values := range []any{i.Values.All, i.Values} { // flags have changed the second
			text, err := json.Marshal(values)
			if err != nil {
				return fmt.Errorf("config: values: %w", err)
			}
			i.valueTexts = append(i.valueTexts, text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		made, err := i.parseTemplate(name, given[name])
		if err != nil {
			errs = append(errs, fmt.Errorf("config: templates: %s: %w", name, err))
			continue
		}
		i.templates[name] = made
	}
	for _, name := range i.resolveAliases(i.Values.SidecarInjectorWebhook.DefaultTemplates) {
		if i.templates[name] == nil {
			errs = append(errs, fmt.Errorf("config: defaultTemplates: there is no template %q", name))
		}
	}
	return errors.Join(errs...)
}

// resolveAliases replaces each alias in a list of templates by the templates that it stands for.
func (i *Injector) resolveAliases(names []string) []string {
	var out []string
	for _, name := range names {
		if list, ok := i.Values.SidecarInjectorWebhook.Aliases[name]; ok {
			out = append(out, list...)
		} else {
			out = append(out, name)
		}
	}
	return out
}

// rootTemplate names the whole text.
const rootTemplate = "injection"

// parseTemplate returns the template in a text.
func (i *Injector) parseTemplate(name, text string) (podTemplate, error) {
	trees, err := parse.Parse(rootTemplate, text, "", "", templateFunctions())
	if err != nil {
		return nil, errors.New(placeInTemplate.ReplaceAllString(err.Error(), "line $1: "))
	}
	made := func(ctx context.Context, p *injection) (map[string]any, error) {
		text, err := p.execute(ctx, trees)
		if err != nil {
			return nil, err
		}
		return p.patchOf(name, text)
	}
	var constant strings.Builder
	for _, node := range trees[rootTemplate].Root.Nodes {
		text, ok := node.(*parse.TextNode)
		if !ok {
			return made, nil
		}
		constant.Write(text.Text)
	}
	_, err = (&injection{Injector: i}).patchOf(name, constant.String()) // the same for all pods
	return made, err
}

// placeInTemplate matches what package parse writes before the reason of an error.
var placeInTemplate = regexp.MustCompile(`^template: ` + rootTemplate + `:(\d+)(?::\d+)?: `)

// templateData is what a template reads, with the names and the types of Istio.
type templateData struct {
	TypeMeta                 metav1.TypeMeta // of the workload
	DeploymentMeta           types.NamespacedName
	ObjectMeta               metav1.ObjectMeta // of the pod
	Spec                     corev1.PodSpec
	ProxyConfig              *meshv1alpha1.ProxyConfig
	MeshConfig               *meshv1alpha1.MeshConfig
	Values                   map[string]any
	Revision                 string
	NativeSidecars           bool
	ProxyImage               string
	ProxyInitImage           string
	ProxyUID, ProxyGID       int64
	InboundTrafficPolicyMode string
	CompliancePolicy         string
}

// templateData returns the data for one execution. It shares nothing, as templates can call
// methods that change their object.
func (p *injection) templateData() (*templateData, error) {
	values, err := p.templateValues()
	if err != nil {
		return nil, err
	}
	pod := p.pod.DeepCopy()
	pod.Namespace = p.namespace
	inbound := "passthrough"
	if p.Mesh.GetInboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_InboundTrafficPolicy_LOCALHOST {
		inbound = "localhost"
	}
	return &templateData{
		TypeMeta:       metav1.TypeMeta{Kind: p.workload.Kind, APIVersion: p.workload.APIVersion},
		DeploymentMeta: types.NamespacedName{Namespace: p.namespace, Name: p.workload.Name},
		ObjectMeta:     pod.ObjectMeta, Spec: pod.Spec,
		ProxyConfig: proto.CloneOf(p.proxy), MeshConfig: proto.CloneOf(p.Mesh), Values: values,
		Revision: p.revision(), NativeSidecars: p.native(), ProxyImage: p.image(), ProxyInitImage: p.image(),
		ProxyUID: proxyUser, ProxyGID: proxyUser, InboundTrafficPolicyMode: inbound,
	}, nil
}

// templateValues returns the Helm values, above what other settings say.
func (p *injection) templateValues() (map[string]any, error) {
	out := map[string]any{
		"global":   map[string]any{"meshID": p.MeshID, "multiCluster": map[string]any{"clusterName": p.cluster()}, "network": p.network()},
		"revision": "",
	}
	for _, text := range p.valueTexts {
		var values map[string]any
		if err := json.Unmarshal(text, &values); err != nil {
			return nil, err
		}
		overlayValues(out, values)
	}
	return out, nil
}

// overlayValues overlays values as Helm does: mappings are merged, everything else is replaced.
func overlayValues(under, over map[string]any) {
	for name, value := range over {
		below, isMap := under[name].(map[string]any)
		if above, ok := value.(map[string]any); ok && isMap {
			overlayValues(below, above)
		} else {
			under[name] = value
		}
	}
}

// podForm has the form of the patch.
type podForm struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     corev1.PodSpec    `json:"spec"`
}

// patchOf returns the patch in the result of a template.
func (p *injection) patchOf(name, text string) (map[string]any, error) {
	doc, err := yamldoc.ParseOnly([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("the result is no YAML: %w%s", err, lineOfResult(text, err))
	}
	if doc.IsNull() { // a condition left nothing
		return nil, nil
	}
	for _, field := range doc.Keys() {
		switch field {
		case "metadata", "spec", "apiVersion", "kind":
		default:
			p.warnf("template %s: field %s has no effect: a template has metadata and spec of a pod", name, field)
		}
	}
	data, err := doc.JSON()
	if err != nil {
		return nil, err
	}
	if err := decodeKube(data, &podForm{}); err != nil {
		return nil, fmt.Errorf("the result does not have the form of a pod: %w", err)
	}
	patch, err := Decode(data)
	if err != nil {
		return nil, err
	}
	if err := checkSize(patch); err != nil {
		return nil, fmt.Errorf("the result: %w", err)
	}
	p.followPath(patch)
	p.runMeshctl(patch)
	return patch, nil
}

// lineOfResult returns the line of the result in which an error of YAML is.
func lineOfResult(text string, err error) string {
	fault, ok := errors.AsType[*yamldoc.Error](err)
	lines := strings.Split(text, "\n")
	if !ok || fault.Line < 1 || fault.Line > len(lines) {
		return ""
	}
	return fmt.Sprintf(", which is %.100q", lines[fault.Line-1])
}

// followPath sets what the path of the webhook has in the container of the proxy.
func (p *injection) followPath(patch map[string]any) {
	proxy := findContainer(patch, proxyContainer)
	if proxy == nil {
		return
	}
	set := merged(p.in.Metadata, nil)
	if p.in.Cluster != "" {
		set["ISTIO_META_CLUSTER_ID"] = string(p.in.Cluster)
	}
	if p.in.Network != "" {
		set["ISTIO_META_NETWORK"] = p.network()
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		addEnv(proxy, name, set[name])
	}
}

// runMeshctl makes the containers of Istio's templates run the programs of meshctl's image, which
// accept the arguments of Istio's programs.
func (p *injection) runMeshctl(patch map[string]any) {
	for name, program := range map[string]struct {
		first string
		under []any
	}{
		proxyContainer: {"proxy", []any{"agent"}}, initContainer: {"istio-iptables", []any{"agent", "redirect"}},
	} {
		c := findContainer(patch, name)
		if c == nil || c["image"] != p.image() {
			continue
		}
		if args, _ := c["args"].([]any); len(args) > 0 && args[0] == program.first && c["command"] == nil {
			c["args"] = slices.Concat(program.under, args)
		}
		hooks, _ := c["lifecycle"].(map[string]any)
		for _, hook := range hooks {
			h, _ := hook.(map[string]any)
			exec, _ := h["exec"].(map[string]any)
			if command, _ := exec["command"].([]any); len(command) > 0 && command[0] == "pilot-agent" {
				exec["command"] = append([]any{"meshctl", "agent"}, command[1:]...)
			}
		}
	}
}
