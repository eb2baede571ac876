package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/net"

	kubeapi "github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/test/kube"
)

// injectionObjects are namespaces, the settings of the injector, and a CustomResourceDefinition.
const injectionObjects = `apiVersion: v1
kind: Namespace
metadata: {name: istio-system, labels: {topology.istio.io/network: network1}}
---
apiVersion: v1
kind: Namespace
metadata: {name: labelled, labels: {istio-injection: enabled}}
---
apiVersion: v1
kind: Namespace
metadata: {name: revision, labels: {istio.io/rev: default}}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gateways.networking.istio.io}
spec:
  group: networking.istio.io
  scope: Namespaced
  names: {kind: Gateway, plural: gateways, singular: gateway}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: proxyconfigs.networking.istio.io}
spec:
  group: networking.istio.io
  scope: Namespaced
  names: {kind: ProxyConfig, plural: proxyconfigs, singular: proxyconfig}
  versions:
  - {name: v1beta1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: virtualservices.networking.istio.io}
spec:
  group: networking.istio.io
  scope: Namespaced
  names: {kind: VirtualService, plural: virtualservices, singular: virtualservice}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
` + injectorValues

const injectorValues = `apiVersion: v1
kind: ConfigMap
metadata: {name: istio-sidecar-injector, namespace: istio-system}
data: {values: '{"global": {"proxy": {"image": "registry.example/meshctl:1"}}}'}
`

// istioFormTemplate is a template in the form of Istio's own.
const istioFormTemplate = `spec:
  initContainers:
  - name: istio-proxy
    image: "{{ .ProxyImage }}"
    {{ if .NativeSidecars }}restartPolicy: Always{{ end }}
    args:
    - proxy
    - sidecar
    - {{ annotation .ObjectMeta "team" "none" | quote }}
    env:
    {{- range $name, $value := .ProxyConfig.ProxyMetadata }}
    - {name: {{ $name }}, value: {{ $value | quote }}}
    {{- end }}
    - name: PORTS
      value: {{ applicationPorts .Spec.Containers | quote }}
    resources:
      {{ toYaml (omitNil (fromJSON "{\"limits\": {\"cpu\": 1}, \"requests\": null}")) | indent 6 }}
  volumes:
  - emptyDir:
    name: workload-socket
`

// webhookObjects returns the webhook configurations of a server at an address, without roots.
func webhookObjects(addr string) string {
	hook := func(name, namespaces, objects string) string {
		return fmt.Sprintf(`
- name: %s.sidecar-injector.istio.io
  clientConfig: {url: "https://%s/inject"}
  namespaceSelector: {matchExpressions: [%s]}
  objectSelector: {matchExpressions: [%s]}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
`, name, addr, namespaces, objects)
	}
	const notFalse = `{key: sidecar.istio.io/inject, operator: NotIn, values: ["false"]}`
	const noNamespace, noRev = `{key: istio-injection, operator: DoesNotExist}`, `{key: istio.io/rev, operator: DoesNotExist}`
	return `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: istio-sidecar-injector, labels: {app.kubernetes.io/managed-by: meshctl, istio.io/rev: default}}
webhooks:` + hook("rev.namespace", `{key: istio.io/rev, operator: In, values: [default]}, `+noNamespace, notFalse) +
		hook("namespace", `{key: istio-injection, operator: In, values: [enabled]}`, notFalse) +
		hook("object", noNamespace+", "+noRev, `{key: sidecar.istio.io/inject, operator: In, values: ["true"]}`) + `---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: istio-validator-istio-system, labels: {app.kubernetes.io/managed-by: meshctl, istio.io/rev: default}}
webhooks:
- name: rev.validation.istio.io
  clientConfig: {url: "https://` + addr + `/validate"}
  rules: [{operations: [CREATE, UPDATE], apiGroups: [networking.istio.io], apiVersions: ["*"], resources: ["*"]}]
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: other, labels: {istio.io/rev: default}}
webhooks:
- name: other.example.com
  clientConfig: {url: "https://` + addr + `/inject"}
  rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [nodes]}]
  sideEffects: None
  admissionReviewVersions: [v1]
`
}

// TestWebhooksOfAPI: an API server verifies the webhooks with the roots that the control plane
// writes, injects the pods of labelled namespaces and pods that ask for it, and refuses
// invalid pods and objects. Without the control plane, it creates other pods.
func TestWebhooksOfAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	c.Apply(t, injectionObjects)
	s := start(t, func(cfg *Config) {
		cfg.ConfigDir, cfg.KubeAccess = "", c.Config()
		cfg.HTTPSAddr, cfg.ServingNames = "127.0.0.1:0", []string{"127.0.0.1"}
	})
	client, err := kubeapi.NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	// create asks the API server to create a pod, without effect.
	create := func(namespace string, labels, annotations map[string]string, host bool) (*corev1.Pod, error) {
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			ServiceAccountName: "default", HostNetwork: host, Containers: []corev1.Container{{Name: "app", Image: "app:1"}},
		}}
		pod.Name, pod.Labels, pod.Annotations = "web", labels, annotations
		return client.Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	proxy := func(pod *corev1.Pod) *corev1.Container {
		for i := range pod.Spec.InitContainers {
			if pod.Spec.InitContainers[i].Name == "istio-proxy" {
				return &pod.Spec.InitContainers[i]
			}
		}
		return &corev1.Container{}
	}
	image := func(pod *corev1.Pod) string { return proxy(pod).Image }
	for _, namespace := range []string{"labelled", "revision", "plain"} {
		waitFor(t, "service account of "+namespace, func() bool {
			_, err := create(namespace, nil, nil, false)
			return err == nil
		})
	}
	c.Apply(t, webhookObjects(s.webhooks.Addr().String()))
	waitFor(t, "injection", func() bool {
		pod, err := create("labelled", nil, nil, false)
		return err == nil && image(pod) == "registry.example/meshctl:1"
	})

	no, yes := map[string]string{"sidecar.istio.io/inject": "false"}, map[string]string{"sidecar.istio.io/inject": "true"}
	for _, p := range []struct {
		namespace string
		labels    map[string]string
		host      bool
		injected  bool
	}{
		{"labelled", nil, false, true},
		{"labelled", no, false, false},
		{"labelled", nil, true, false},
		{"labelled", yes, true, false},
		{"revision", nil, false, true},
		{"revision", no, false, false},
		{"plain", nil, false, false},
		{"plain", no, false, false},
		{"plain", yes, false, true},
	} {
		pod, err := create(p.namespace, p.labels, nil, p.host)
		if err != nil || (image(pod) != "") != p.injected {
			t.Errorf("%s %v host network %v: injected with %q, %v", p.namespace, p.labels, p.host, image(pod), err)
		}
		if err == nil && p.injected && pod.Labels["topology.istio.io/network"] != "network1" {
			t.Errorf("%s %v: labels are %v", p.namespace, p.labels, pod.Labels)
		}
	}
	if _, err := create("labelled", nil, map[string]string{"sidecar.istio.io/proxyCPU": "lots"}, false); err == nil ||
		!strings.Contains(err.Error(), `annotation sidecar.istio.io/proxyCPU: "lots" is not an amount`) {
		t.Errorf("an invalid annotation: %v", err)
	}

	if got := c.Kubectl(t, "", "get", "validatingwebhookconfiguration", "istio-validator-istio-system", "-o", "jsonpath={.webhooks[*].failurePolicy}"); got != "Fail" {
		t.Errorf("the failure policy of the validation is %s", got)
	}
	if got := c.Kubectl(t, "", "get", "mutatingwebhookconfiguration", "other", "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}"); got != "" {
		t.Errorf("the configuration of another owner got the roots %s", got)
	}
	gateway := func(number int) error {
		text := fmt.Sprintf(`{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "g"}, "spec": {"selector": {"a": "b"},
			"servers": [{"port": {"number": %d, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]}]}}`, number)
		return client.Patch(types.ApplyPatchType).AbsPath("/apis/networking.istio.io/v1/namespaces/plain/gateways/g").
			Param("fieldManager", "test").Param("dryRun", "All").Body([]byte(text)).Do(t.Context()).Error()
	}
	if err := gateway(80); err != nil {
		t.Errorf("a valid Gateway: %v", err)
	}
	waitFor(t, "refusal", func() bool { return gateway(99999) != nil })
	if err := gateway(99999); err == nil || !strings.Contains(err.Error(), "spec.servers[0].port.number") {
		t.Errorf("an invalid Gateway: %v", err)
	}

	// The checks of analyze are warnings: the other object may follow.
	route := client.Patch(types.ApplyPatchType).AbsPath("/apis/networking.istio.io/v1/namespaces/plain/virtualservices/v").
		Param("fieldManager", "test").Body([]byte(`{"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "v"},
			"spec": {"hosts": ["web"], "http": [{"route": [{"destination": {"host": "nothing"}}]}]}}`)).Do(t.Context())
	const missing = "IST0101: spec.http[0].route[0].destination.host: destination nothing.plain.svc.cluster.local is no service"
	if warnings := route.Warnings(); route.Error() != nil || !slices.ContainsFunc(warnings, func(w net.WarningHeader) bool { return strings.Contains(w.Text, missing) }) {
		t.Errorf("a route to nothing: %v, %v, want a warning with %q", route.Error(), warnings, missing)
	}

	c.Apply(t, "{apiVersion: networking.istio.io/v1beta1, kind: ProxyConfig, metadata: {name: p, namespace: labelled}, spec: {environmentVariables: {FLAVOR: sweet}}}")
	waitFor(t, "variable of the ProxyConfig", func() bool {
		pod, err := create("labelled", nil, nil, false)
		return err == nil && slices.Contains(proxy(pod).Env, corev1.EnvVar{Name: "FLAVOR", Value: "sweet"})
	})

	// Templates of users: the API server accepts what they make of a pod. Those that do not compile
	// are refused as a whole.
	withTemplate := func(text string) string {
		config, err := json.Marshal(map[string]any{"templates": map[string]string{"sidecar": istioFormTemplate, "own": text}})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Replace(injectorValues, "\ndata: {", "\ndata: {config: '"+strings.ReplaceAll(string(config), "'", "''")+"', ", 1)
	}
	templates := map[string]string{"inject.istio.io/templates": "sidecar,own", "team": "{{ .Values }}: [a]"}
	c.Apply(t, withTemplate("{{ range .Spec.Containers }}metadata: {annotations: {first: {{ .Name }}}, labels: {size: {{ len .Name | quote }}}}{{ end }}"))
	waitFor(t, "templates of users", func() bool {
		pod, err := create("labelled", nil, templates, false)
		return err == nil && pod.Annotations["first"] == "app" && pod.Labels["size"] == "3" && image(pod) == "registry.example/meshctl:1" &&
			slices.Equal(proxy(pod).Args, []string{"agent", "proxy", "sidecar", "{{ .Values }}: [a]"})
	})
	c.Apply(t, withTemplate("metadata:\n  labels: {size: {{ nothing }}}"))
	waitFor(t, "report of the line", func() bool {
		return strings.Contains(strings.Join(s.apiNotes(), "\n"), `config: templates: own: line 2: function "nothing" not defined`)
	})
	if pod, err := create("labelled", nil, templates, false); err != nil || pod.Annotations["first"] != "app" {
		t.Errorf("with templates that do not compile: %v, %v", pod, err)
	}

	c.Apply(t, strings.Replace(injectorValues, "meshctl:1", "meshctl:2", 1))
	waitFor(t, "new image", func() bool {
		pod, err := create("labelled", nil, nil, false)
		return err == nil && strings.HasSuffix(image(pod), ":2")
	})
	c.Apply(t, strings.Replace(injectorValues, "registry.example/meshctl:1", "istio/proxyv2:1", 1))
	waitFor(t, "report", func() bool { return strings.Contains(strings.Join(s.apiNotes(), "\n"), "is Istio's image") })
	if pod, err := create("labelled", nil, nil, false); err != nil || !strings.HasSuffix(image(pod), ":2") {
		t.Errorf("with invalid settings: %v", err)
	}

	metrics := metricsPage(t, s)
	for _, want := range []string{
		`galley_validation_passed{group="networking.istio.io",resource="gateways",version="v1"} `,
		`galley_validation_failed{group="networking.istio.io",reason="invalid_resource",resource="gateways",version="v1"} `,
		"sidecar_injection_success_total ", "sidecar_injection_failure_total ",
	} {
		if _, value, ok := strings.Cut(metrics, "\n"+want); !ok || strings.HasPrefix(value, "0\n") {
			t.Errorf("no %s in the metrics, or 0", want)
		}
	}

	c.Apply(t, webhookObjects("127.0.0.1:1")) // no control plane
	waitFor(t, "refusal of labelled pods", func() bool {
		_, err := create("labelled", nil, nil, false)
		return err != nil
	})
	for namespace, labels := range map[string]map[string]string{"plain": nil, "labelled": no} {
		if _, err := create(namespace, labels, nil, false); err != nil {
			t.Errorf("without a control plane, a pod in %s: %v", namespace, err)
		}
	}
}
