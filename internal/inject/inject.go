// Package inject makes pods members of a mesh: it adds meshctl agent with Envoy as a
// sidecar, and an init container that redirects connections to it, as Istio's injector does.
// It changes decoded JSON, so fields that it does not know stay. It does no I/O.
package inject

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/meshconfig"
)

// Names of the containers that are added.
const (
	proxyContainer = "istio-proxy"
	initContainer  = "istio-init"
)

// Settings are the settings that all pods of a cluster share.
type Settings struct {
	// Mesh is MeshConfig with Istio's defaults. Nil means the defaults.
	Mesh   *meshv1alpha1.MeshConfig
	Values Values
	// SystemNamespace is the namespace of the control plane; default istio-system.
	SystemNamespace string
	// TrustDomain, if not empty, overrides MeshConfig.
	TrustDomain string
	// Cluster, Network and MeshID are for pods whose Values name none.
	Cluster mesh.ClusterID
	Network mesh.NetworkID
	MeshID  string
	// ProxyConfigs are the ProxyConfigs of the cluster, in any order.
	ProxyConfigs []*snapshot.ProxyConfig
	// Image is the image of the proxy if Values name none; default meshctl:latest.
	Image string
}

// Injector injects pods. It is immutable.
type Injector struct {
	Settings
	always, never []labels.Selector
	templates     map[string]podTemplate // by name
	valueTexts    [][]byte               // JSON of the values that custom templates read; later ones overlay earlier ones
}

// New returns an Injector, or refuses the settings.
func New(s Settings) (*Injector, error) {
	if s.Mesh == nil {
		s.Mesh = meshconfig.Default()
	}
	s.SystemNamespace = source.SystemNamespaceOf(s.SystemNamespace)
	s.Image = cmp.Or(s.Image, "meshctl:latest")
	s.ProxyConfigs = slices.SortedFunc(slices.Values(s.ProxyConfigs), func(a, b *snapshot.ProxyConfig) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	i := &Injector{Settings: s, templates: maps.Clone(builtIn)}
	return i, errors.Join(i.checkValues(), i.addTemplates())
}

// Pod is a pod, or the template of the pods of a workload, to inject.
type Pod struct {
	// Object has the fields metadata and spec of a pod.
	Object map[string]any
	// Namespace is the namespace of the pod if its metadata has none.
	Namespace string
	// Workload is the workload that the template is part of. If it is zero, it is found by the
	// owner of the pod.
	Workload mesh.Workload
	// Cluster, Network and Metadata override the settings. Metadata has metadata of the node
	// by name.
	Cluster  mesh.ClusterID
	Network  mesh.NetworkID
	Metadata map[string]string
}

// Result is the result of an injection.
type Result struct {
	// Object is the injected pod, or nil if Skipped is set. It shares nothing with the Pod.
	Object map[string]any
	// Skipped is the reason why the pod stays as it is. Asked reports whether the pod itself
	// asks for injection.
	Skipped string
	Asked   bool
	// Warnings list the parts of the pod without effect.
	Warnings []string
}

// injection is the injection of one pod.
type injection struct {
	*Injector
	in        Pod
	pod       *corev1.Pod // before injection
	namespace string
	workload  mesh.Workload
	templates []string // their names
	proxy     *meshv1alpha1.ProxyConfig
	// concurrency is the number of worker threads in the ProxyConfig that selects the pod, or 0.
	concurrency int32
	warnings    []string
	templateBudget
}

// Inject injects a pod. The error lists all faults of the pod, each with its place. Inject ends soon
// after ctx.
func (i *Injector) Inject(ctx context.Context, in Pod) (Result, error) {
	if err := checkSize(in.Object); err != nil {
		return Result{}, err
	}
	object, pod, err := decodePod(in.Object)
	if err != nil {
		return Result{}, err
	}
	p := &injection{
		Injector: i, in: in, pod: pod, namespace: cmp.Or(pod.Namespace, in.Namespace, "default"), templateBudget: newTemplateBudget(),
	}
	skipped, asked, err := p.skip()
	if err != nil || skipped != "" {
		return Result{Skipped: skipped, Asked: asked}, err
	}
	p.workload = cmp.Or(in.Workload, ownerOf(pod))
	if err := p.resolve(ctx); err != nil {
		return Result{}, err
	}
	if err := p.apply(ctx, object); err != nil {
		return Result{}, err
	}
	return Result{Object: object, Asked: asked, Warnings: p.warnings}, nil
}

// decodePod returns a copy of the object, and the object as a pod.
func decodePod(object map[string]any) (map[string]any, *corev1.Pod, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, nil, err
	}
	pod := &corev1.Pod{}
	if err := decodeKube(text, pod); err != nil {
		return nil, nil, fmt.Errorf("the pod does not have the form of the Kubernetes API: %w", err)
	}
	if err := checkAnnotationSize(pod.Annotations); err != nil {
		return nil, nil, err
	}
	var own map[string]any
	if err := unmarshal(text, &own); err != nil {
		return nil, nil, err
	}
	if len(pod.Spec.Containers) == 0 {
		return nil, nil, errors.New("spec.containers: the pod has no container")
	}
	return own, pod, nil
}

// resolve resolves everything that users set, and reports all faults.
func (p *injection) resolve(ctx context.Context) error {
	p.templates = p.templateNames()
	if len(p.templates) > maxTemplates {
		return fmt.Errorf("annotation %s: names %d templates: want at most %d", mesh.AnnotationTemplates, len(p.templates), maxTemplates)
	}
	errs := p.checkAnnotations()
	for _, name := range p.templates {
		switch _, ok := p.Injector.templates[name]; {
		case ok:
		case name == mesh.TemplateGRPCSimple: // Istio's, without an agent
			errs = append(errs, fmt.Errorf("annotation %s: the template %s needs port %d of the control plane, which cannot verify identities and refuses connections: use %s",
				mesh.AnnotationTemplates, name, mesh.PortPlaintextXDS, mesh.TemplateGRPCAgent))
		default:
			errs = append(errs, fmt.Errorf("annotation %s: there is no template %q: want %s",
				mesh.AnnotationTemplates, name, strings.Join(slices.Sorted(maps.Keys(p.Injector.templates)), ", ")))
		}
	}
	if p.proxyless() && (slices.Contains(p.templates, sidecarTemplate) || slices.Contains(p.templates, gatewayTemplate)) {
		errs = append(errs, fmt.Errorf("annotation %s: %q: %s runs no Envoy, which the other template needs: leave one of them out",
			mesh.AnnotationTemplates, strings.Join(p.templates, ","), mesh.TemplateGRPCAgent))
	}
	if len(errs) == 0 {
		var err error
		if p.proxy, err = p.proxyConfig(); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	p.warnPorts()
	return ctx.Err()
}

// templateNames returns the templates that the pod asks for, else the default ones.
func (p *injection) templateNames() []string {
	if text := p.annotation(mesh.AnnotationTemplates); text != "" {
		return p.resolveAliases(splitList(text))
	}
	if names := p.Values.SidecarInjectorWebhook.DefaultTemplates; len(names) > 0 {
		return p.resolveAliases(names)
	}
	return []string{sidecarTemplate}
}

// apply applies the templates to the object, and what users set above them.
func (p *injection) apply(ctx context.Context, object map[string]any) error {
	own := takeContainers(object)
	for _, name := range p.templates {
		if err := ctx.Err(); err != nil {
			return err
		}
		patch, err := p.Injector.templates[name](ctx, p)
		if err != nil {
			return fmt.Errorf("template %s: %w", name, err)
		}
		joinProxies(object, patch)
		merge(object, patch)
	}
	p.followAnnotations(object)
	if err := overrideContainers(object, own); err != nil {
		return err
	}
	if len(containersOf(object, appContainers)) == 0 {
		return fmt.Errorf("spec.containers: %s is the only container: for a gateway set the annotation %s: %s",
			proxyContainer, mesh.AnnotationTemplates, gatewayTemplate)
	}
	p.followUser(object)
	p.orderContainers(object)
	if err := p.moveProbes(ctx, object); err != nil {
		return err
	}
	p.mergeMetrics(object)
	return p.describe(object)
}

// followAnnotations makes annotations of templates count for what happens after the templates.
func (p *injection) followAnnotations(object map[string]any) {
	metadata, _ := object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	p.pod.Annotations = make(map[string]string, len(annotations))
	for name, value := range annotations {
		p.pod.Annotations[name], _ = value.(string)
	}
}

// annotation returns an annotation of the pod.
func (p *injection) annotation(name string) string { return p.pod.Annotations[name] }

func (p *injection) warnf(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}

// splitList splits a list at commas, and leaves out empty items.
func splitList(text string) []string {
	var out []string
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}
