package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/install"
)

const deploy = "../../deploy"

// TestGenerated: deploy has what this version generates.
func TestGenerated(t *testing.T) {
	t.Parallel()
	files, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(deploy, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("deploy/%s is not what go run . in tools/chart writes: %v", name, err)
		}
	}
}

// render returns the objects of a release by kind, namespace and name.
func render(t *testing.T, chart, name, namespace, values string) (map[string]any, error) {
	t.Helper()
	c, err := loader.LoadDir(filepath.Join(deploy, "helm", chart))
	if err != nil {
		t.Fatal(err)
	}
	var given map[string]any
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	all, err := util.ToRenderValues(c, given, common.ReleaseOptions{Name: name, Namespace: namespace}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for name, text := range files {
		decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
		for {
			var o map[string]any
			if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v in\n%s", name, err, text)
			}
			if o != nil {
				put(t, out, &unstructured.Unstructured{Object: o})
			}
		}
	}
	return out, nil
}

// put adds an object as text that does not depend on the order of fields, and without the
// label that Helm sets.
func put(t *testing.T, out map[string]any, o *unstructured.Unstructured) {
	t.Helper()
	text, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	o = &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	unstructured.RemoveNestedField(o.Object, "metadata", "labels", "app.kubernetes.io/managed-by")
	data, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	for key, text := range data {
		var content any
		if err := yaml.Unmarshal([]byte(text), &content); err != nil {
			t.Fatal(err)
		}
		if fields, ok := content.(map[string]any); ok && fields["defaultConfig"] == nil {
			delete(fields, "defaultConfig") // equal to an empty one
		}
		if err := unstructured.SetNestedField(o.Object, content, "data", key); err != nil {
			t.Fatal(err)
		}
	}
	if _, twice := out[install.Ref(o)]; twice {
		t.Errorf("%s is there twice", install.Ref(o))
	}
	out[install.Ref(o)] = o.Object
}

// installed returns the objects of an installation that want selects.
func installed(t *testing.T, v *install.Values, want func(*unstructured.Unstructured) bool) map[string]any {
	t.Helper()
	objects, err := install.Objects(v)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	for _, o := range objects {
		if o.GetKind() != "Namespace" && want(o) {
			put(t, out, o)
		}
	}
	return out
}

// TestControlPlane: the chart makes the same objects as meshctl install with its values.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]string{
		"defaults":                "{}",
		"names":                   "global: {meshID: mesh1, network: network1, multiCluster: {clusterName: cluster1}, hub: registry.example/a, tag: v1, imagePullPolicy: Always}",
		"odd names":               `global: {meshID: "1", network: "true", multiCluster: {clusterName: "2e3"}}`,
		"revision":                "revision: canary\nglobal: {meshID: mesh1}",
		"namespace":               "global: {istioNamespace: mesh-system}",
		"revision in a namespace": "revision: canary\nglobal: {istioNamespace: mesh-system, meshID: mesh1}",
		"fixed replicas":          "pilot: {autoscaleEnabled: false, replicaCount: 3}",
		"autoscaler":              "pilot: {autoscaleMin: 3, autoscaleMax: 9}",
		"pods": `pilot:
  env: {GOGC: "50", MESHCTL_LOG_LEVEL: debug}
  podAnnotations: {a: b}
  nodeSelector: {disk: ssd}
  tolerations: [{key: a, operator: Exists}]
  resources: {requests: {cpu: 100m, memory: 100Mi}, limits: {memory: 2Gi}}
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
global: {imagePullSecrets: [one, two]}`,
		"mesh":     "meshConfig: {accessLogFile: /dev/stdout, defaultConfig: {concurrency: 3, meshId: other}}\nglobal: {meshID: mesh1}",
		"tags":     "revision: canary\nrevisionTags: [next, default]",
		"own tags": "revisionTags: [prod]",
		"injector": "global: {proxy: {logLevel: debug, includeIPRanges: 10.0.0.0/8}, caAddress: 'ca:1'}\nsidecarInjectorWebhook: {rewriteAppHTTPProbe: false}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := install.Default("localhost/meshctl:latest")
			unsupported, err := v.Read("values.yaml", []byte("meshConfig: {}\n"+strings.TrimPrefix(values, "{}")))
			if strings.Contains(values, "meshConfig") {
				unsupported, err = v.Read("values.yaml", []byte(values))
			}
			if err != nil || len(unsupported) > 0 {
				t.Fatal(err, unsupported)
			}
			want := installed(t, &v, func(*unstructured.Unstructured) bool { return true })
			got, err := render(t, "meshctl", "any", v.Namespace, values)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-install +helm:\n%s", diff)
			}
		})
	}
	if _, err := render(t, "meshctl", "any", "istio-system", "revision: default"); err == nil || !strings.Contains(err.Error(), "leave it empty") {
		t.Errorf("revision default: %v", err)
	}
	got, err := render(t, "meshctl", "any", "istio-system", "{revision: canary, sharedConfig: false}")
	if err != nil || got["ConfigMap istio-system/istio"] != nil || got["ConfigMap istio-system/istio-sidecar-injector-canary"] == nil || got["Deployment istio-system/istiod-canary"] == nil {
		t.Errorf("without shared ConfigMaps: %v", err)
	}
}

// TestGateway: the chart makes the same objects as meshctl install for a gateway.
func TestGateway(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		values  string
		network string
		change  func(v *install.Values, g *install.Gateway)
	}{
		"east-west": {"networkGateway: network1\nexposeServices: true\nexposeIstiod: true", "network1", func(v *install.Values, g *install.Gateway) {
			v.ExposeServices, v.ExposeControlPlane, g.Namespace = true, true, "istio-system"
		}},
		"revision": {"networkGateway: network1\nrevision: canary", "network1", func(v *install.Values, g *install.Gateway) {
			v.Revision, g.Namespace = "canary", "istio-system"
		}},
		"ingress": {"{}", "", func(*install.Values, *install.Gateway) {}},
		"settings": {
			`autoscaling: {enabled: false}
replicaCount: 2
env: {ISTIO_META_A: b}
imagePullSecrets: [one]
service: {type: NodePort, loadBalancerIP: 192.0.2.1, externalIPs: [192.0.2.2], annotations: {a: b}, ports: [{name: http2, port: 80, targetPort: 8080, protocol: TCP}]}`,
			"", func(v *install.Values, g *install.Gateway) {
				g.Workload.Autoscale, g.Workload.Replicas, v.PullSecrets = false, 2, []string{"one"}
				g.Env = append(g.Env, corev1.EnvVar{Name: "ISTIO_META_A", Value: "b"})
				g.ServiceType, g.LoadBalancerIP, g.ExternalIPs, g.ServiceAnnotations = "NodePort", "192.0.2.1", []string{"192.0.2.2"}, map[string]string{"a": "b"}
				g.Ports = g.Ports[1:2]
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := install.IngressGateway()
			if tc.network != "" {
				g = install.EastWestGateway(tc.network)
			}
			g.Namespace = "istio-ingress"
			v := install.Default("localhost/meshctl:latest")
			tc.change(&v, &g)
			v.Gateways = []install.Gateway{g}
			own := func(o *unstructured.Unstructured) bool {
				return o.GetNamespace() == "istio-ingress" || o.GetName() == g.Name || strings.Contains(o.GetAPIVersion(), ".istio.io/")
			}
			got, err := render(t, "gateway", g.Name, g.Namespace, tc.values)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(installed(t, &v, own), got); diff != "" {
				t.Errorf("-install +helm:\n%s", diff)
			}
		})
	}
}
