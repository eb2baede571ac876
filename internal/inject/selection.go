package inject

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Names of labels and annotations of pods and namespaces.
const (
	labelInject  = "sidecar.istio.io/inject"
	labelRev     = "istio.io/rev"
	labelEnabled = "istio-injection" // of namespaces

	annotationStatus = "sidecar.istio.io/status"
)

// The policies for pods that do not decide themselves.
const (
	policyEnabled  = "enabled"
	policyDisabled = "disabled"
)

// skip returns the reason why the pod is not injected, or "". asked reports whether the pod
// asks for injection.
func (p *injection) skip() (reason string, asked bool, err error) {
	text, place := p.pod.Labels[labelInject], "label "+labelInject
	if _, ok := p.pod.Labels[labelInject]; !ok {
		text, place = p.annotation(labelInject), "annotation "+labelInject
	}
	switch text {
	case "", "true", "false":
	default:
		return "", false, fmt.Errorf("%s is %q: want \"true\" or \"false\"", place, text)
	}
	asked = text == "true"
	selected := func(by []labels.Selector) bool {
		return slices.ContainsFunc(by, func(s labels.Selector) bool { return s.Matches(labels.Set(p.pod.Labels)) })
	}
	switch {
	case p.pod.Spec.HostNetwork:
		reason = "spec.hostNetwork is true: the proxy would redirect the connections of the node"
	case mesh.IsKubernetesNamespace(p.namespace):
		reason = "namespace " + p.namespace + " is never injected"
	case text == "false":
		reason = place + " is \"false\""
	case p.annotation(annotationStatus) != "":
		reason, asked = "it is injected already (annotation "+annotationStatus+")", false
	case asked:
	case selected(p.never):
		reason = "neverInjectSelector selects it"
	case selected(p.always):
	case p.Values.Global.Proxy.AutoInject == policyDisabled:
		reason = "global.proxy.autoInject is disabled, and the label " + labelInject + " does not ask for injection"
	}
	return reason, asked, nil
}
