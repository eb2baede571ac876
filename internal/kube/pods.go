package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

const (
	// maxPods bounds the pods of a namespace, podsAtOnce the pods in one response.
	maxPods    = 20_000
	podsAtOnce = 1000
	// maxObject bounds the object that owns pods, in bytes.
	maxObject = 4 << 20
)

// Workload names a pod, or an object that owns pods, such as a Deployment. The zero Kind
// is pod.
type Workload struct {
	Kind            string
	Namespace, Name string
}

// String returns the form kind/name.namespace, which ParseWorkload accepts.
func (r Workload) String() string {
	return cmp.Or(r.Kind, pod) + "/" + r.Name + "." + r.Namespace
}

// IsPod reports whether the workload is a pod itself.
func (r Workload) IsPod() bool { return cmp.Or(r.Kind, pod) == pod }

// OwnsPods reports whether the workload is an object whose pods belong to no other one.
func (r Workload) OwnsPods() bool {
	return !r.IsPod() && r.Kind != gateway && r.Kind != service
}

// Kinds of workloads. The pods of a gateway have a label with its name.
const (
	pod     = "pod"
	gateway = "gateway"
	service = "service"
)

// workloadKind is a kind of workload.
type workloadKind struct {
	group, version, resource string
	others                   []string // short names
	// labels returns the selector of the pods of the object.
	labels func(*owner) (labels.Selector, error)
}

// workloadKinds returns the kinds by name.
func workloadKinds() map[string]workloadKind {
	return map[string]workloadKind{
		pod:           {resource: "pods", others: []string{"po"}},
		service:       {version: "v1", resource: "services", others: []string{"svc"}, labels: serviceLabels},
		"deployment":  {group: "apps", version: "v1", resource: "deployments", others: []string{"deploy"}, labels: selectorLabels},
		"replicaset":  {group: "apps", version: "v1", resource: "replicasets", others: []string{"rs"}, labels: selectorLabels},
		"statefulset": {group: "apps", version: "v1", resource: "statefulsets", others: []string{"sts"}, labels: selectorLabels},
		"daemonset":   {group: "apps", version: "v1", resource: "daemonsets", others: []string{"ds"}, labels: selectorLabels},
		"job":         {group: "batch", version: "v1", resource: "jobs", labels: selectorLabels},
		gateway: {
			group: "gateway.networking.k8s.io", version: "v1", resource: "gateways", others: []string{"gtw"}, labels: gatewayLabels,
		},
	}
}

// WorkloadKinds returns the names of the kinds, sorted.
func WorkloadKinds() []string { return slices.Sorted(maps.Keys(workloadKinds())) }

// workloadKindOf returns the kind with that name, in any case, with or without its group,
// such as deploy, Deployments or deployment.apps.
func workloadKindOf(written string) (string, error) {
	name, group, _ := strings.Cut(strings.ToLower(written), ".")
	for shown, k := range workloadKinds() {
		if name == shown || name == k.resource || slices.Contains(k.others, name) {
			if group == "" || group == k.group || group == k.version+"."+k.group {
				return shown, nil
			}
		}
	}
	return "", fmt.Errorf("kind %q is none of %s", written, strings.Join(WorkloadKinds(), ", "))
}

// WorkloadForms lists the forms of the name of a workload, for messages.
const WorkloadForms = "POD, POD.NAMESPACE or KIND/NAME, such as deploy/web or svc/web.apps"

// ParseWorkload parses [kind/]name[.namespace]. The text after the last dot is the
// namespace; without a dot it is the parameter.
func ParseWorkload(text, namespace string) (Workload, error) {
	r := Workload{Kind: pod, Name: text, Namespace: namespace}
	if written, name, ok := strings.Cut(text, "/"); ok {
		found, err := workloadKindOf(written)
		if err != nil {
			return Workload{}, fmt.Errorf("%q: %w; want %s", text, err, WorkloadForms)
		}
		r.Kind, r.Name = found, name
	}
	if dot := strings.LastIndexByte(r.Name, '.'); dot >= 0 {
		r.Name, r.Namespace = r.Name[:dot], r.Name[dot+1:]
	}
	switch {
	case !mesh.IsDNSName(r.Name):
		return Workload{}, fmt.Errorf("%q: %q is not a name of Kubernetes; want %s", text, r.Name, WorkloadForms)
	case !mesh.IsDNSLabel(r.Namespace):
		return Workload{}, fmt.Errorf("%q: %q is not the name of a namespace; want %s", text, r.Namespace, WorkloadForms)
	}
	return r, nil
}

// AbsentError reports that a cluster has no running pod of a workload.
type AbsentError struct{ text string }

func (e *AbsentError) Error() string { return e.text }

func absent(format string, args ...any) error { return &AbsentError{fmt.Sprintf(format, args...)} }

// PodFinder finds pods through one API server. The caller must close it.
type PodFinder struct {
	api *Client
	// Certain makes it an error that the user may not read a pod. Otherwise such a pod counts as found:
	// port-forward may still be allowed.
	Certain bool
}

// NewPodFinder returns a PodFinder. It makes no request.
func NewPodFinder(access *rest.Config) (*PodFinder, error) {
	api, err := NewClient(access)
	if err != nil {
		return nil, err
	}
	return &PodFinder{api: api}, nil
}

// Close closes the connections.
func (f *PodFinder) Close() { f.api.Close() }

// Pods returns the names of the running pods of a workload, at least one: ready pods
// first, then older ones, as kubectl prefers them. A pod that is named itself need not
// run.
func (f *PodFinder) Pods(ctx context.Context, r Workload) ([]string, error) {
	if r.IsPod() {
		return []string{r.Name}, f.exists(ctx, r)
	}
	k, ok := workloadKinds()[r.Kind]
	if !ok {
		return nil, fmt.Errorf("kind %q is none of %s", r.Kind, strings.Join(WorkloadKinds(), ", "))
	}
	selector, err := f.selector(ctx, k, r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r, err)
	}
	return f.running(ctx, r.Namespace, selector, r.String())
}

// ParseSelector parses a label selector, such as app=web,version!=v1.
func ParseSelector(written string) (labels.Selector, error) { return labels.Parse(written) }

// Select returns the names of the running pods of a namespace that match the selector, at
// least one, in the order of Pods.
func (f *PodFinder) Select(ctx context.Context, namespace string, selector labels.Selector) ([]string, error) {
	return f.running(ctx, namespace, selector, selector.String())
}

// running returns the names of the running pods that match the selector. wanted names
// them in errors.
func (f *PodFinder) running(ctx context.Context, namespace string, selector labels.Selector, wanted string) ([]string, error) {
	pods, err := f.list(ctx, namespace, selector.String())
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, absent("no pods match %q: none in namespace %s has the labels %s", wanted, namespace, selector)
	}
	running := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	if len(running) == 0 {
		return nil, absent("no pods match %q: of %d pods none runs, %s is %s", wanted, len(pods), pods[0].Name, pods[0].Status.Phase)
	}
	slices.SortFunc(running, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(podRank(&a), podRank(&b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return podNames(running), nil
}

// Namespaces returns the names of the cluster's namespaces.
func (f *PodFinder) Namespaces(ctx context.Context) ([]string, error) {
	return f.api.Names(ctx, "namespaces", "")
}

// Names returns the names of the running pods of a namespace, sorted.
func (f *PodFinder) Names(ctx context.Context, namespace string) ([]string, error) {
	pods, err := f.list(ctx, namespace, "")
	if err != nil {
		return nil, err
	}
	found := podNames(slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning }))
	slices.Sort(found)
	return found, nil
}

// podRank is lower for a pod that is more likely to respond.
func podRank(p *corev1.Pod) int {
	ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	switch {
	case p.DeletionTimestamp != nil:
		return 2
	case !ready:
		return 1
	}
	return 0
}

func podNames(pods []corev1.Pod) []string {
	out := make([]string, len(pods))
	for i := range pods {
		out[i] = pods[i].Name
	}
	return out
}

func (f *PodFinder) list(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: selector, Limit: podsAtOnce}
	var all []corev1.Pod
	for {
		list, err := f.api.Pods(namespace).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
		}
		all = append(all, list.Items...)
		if options.Continue = list.Continue; options.Continue == "" {
			return all, nil
		}
		if len(all) >= maxPods {
			return nil, fmt.Errorf("list the pods of namespace %s: more than %d; name fewer by their labels", namespace, maxPods)
		}
	}
}

// exists returns an error if there is no such pod.
func (f *PodFinder) exists(ctx context.Context, r Workload) error {
	_, err := f.api.Pods(r.Namespace).Get(ctx, r.Name)
	switch {
	case err == nil || apierrors.IsForbidden(err) && !f.Certain:
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("get %s: %w", r, err)
	}
	text := fmt.Sprintf("namespace %s has no pod %s", r.Namespace, r.Name)
	if known, err := f.Names(ctx, r.Namespace); err == nil {
		if near := output.NearestWord(r.Name, known); near != "" {
			return absent("%s, did you mean %s, or a workload by kind/name, such as deploy/web?", text, near)
		}
		if len(known) == 0 {
			return absent("%s and no running pod; select another namespace by name.namespace or --namespace", text)
		}
	}
	return absent("%s; select another namespace by name.namespace or --namespace, and a workload by kind/name", text)
}

// owner holds the fields of an object that owns pods.
type owner struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Selector json.RawMessage `json:"selector"`
		Type     string          `json:"type"`
	} `json:"spec"`
}

func (f *PodFinder) selector(ctx context.Context, k workloadKind, r Workload) (labels.Selector, error) {
	root := []string{"/api", k.version}
	if k.group != "" {
		root = []string{"/apis", k.group, k.version}
	}
	request := f.api.Get().AbsPath(root...).Namespace(r.Namespace).Resource(k.resource).Name(r.Name)
	body, err := request.SetHeader("Accept", "application/json").Stream(ctx)
	if apierrors.IsNotFound(err) {
		return nil, absent("there is no such %s in namespace %s", r.Kind, r.Namespace)
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var o owner
	if err := json.NewDecoder(http.MaxBytesReader(nil, body, maxObject)).Decode(&o); err != nil {
		return nil, err
	}
	return k.labels(&o)
}

// selectorLabels returns the selector of an object whose selector is a LabelSelector.
func selectorLabels(o *owner) (labels.Selector, error) {
	var s *metav1.LabelSelector
	if err := json.Unmarshal(o.Spec.Selector, &s); err != nil && len(o.Spec.Selector) > 0 {
		return nil, fmt.Errorf("selector: %w", err)
	}
	if s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return nil, absent("it selects no pods")
	}
	return metav1.LabelSelectorAsSelector(s)
}

func serviceLabels(o *owner) (labels.Selector, error) {
	var s map[string]string
	if err := json.Unmarshal(o.Spec.Selector, &s); err != nil && len(o.Spec.Selector) > 0 {
		return nil, fmt.Errorf("selector: %w", err)
	}
	if len(s) == 0 || o.Spec.Type == string(corev1.ServiceTypeExternalName) {
		return nil, absent("the service selects no pods")
	}
	return labels.ValidatedSelectorFromSet(s)
}

func gatewayLabels(o *owner) (labels.Selector, error) {
	return labels.ValidatedSelectorFromSet(labels.Set{mesh.LabelGatewayName: o.Metadata.Name})
}
