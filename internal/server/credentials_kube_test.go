package server

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/kube"
)

// appsReader lets the account of workload web read the Secrets of its namespace.
const appsReader = `apiVersion: v1
kind: Namespace
metadata: {name: apps}
---
apiVersion: v1
kind: Namespace
metadata: {name: other}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: gateway, namespace: apps}
rules: [{apiGroups: [""], resources: [secrets], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: gateway, namespace: apps}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: gateway}
subjects: [{kind: ServiceAccount, name: web, namespace: apps}]
---
`

// TestSecretsOfAPI: a gateway gets the Secrets of its namespace from a Kubernetes API and
// their changes, if the API server permits it, and no Secrets of other namespaces.
func TestSecretsOfAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	c.Apply(t, appsReader)
	for _, v := range []xdswire.Variant{xdswire.SotW, xdswire.Delta} {
		t.Run(v.String(), func(t *testing.T) {
			var logs text
			s := start(t, func(cfg *Config) {
				cfg.ConfigDir, cfg.KubeAccess, cfg.SecretNamespaces = "", c.Config(), []string{"*"}
				cfg.Log = slog.New(slog.NewTextHandler(&logs, nil))
			})
			cert, key := credential(t, s)
			foreign, foreignKey := credential(t, s)
			c.Apply(t, secretYAML("shop", cert, key)+"---\n"+strings.ReplaceAll(secretYAML("shop", foreign, foreignKey), "namespace: apps", "namespace: other"))
			const pair, other = "kubernetes://shop", "kubernetes://other/shop"
			gateway := dialWire(t, s, true, v, "router", xdswire.SecretType, pair, other)
			if got := gateway.secrets(pair, other); !maps.Equal(got, map[string]string{pair: cert + key}) {
				t.Fatalf("the gateway is given %v", got)
			}
			newer, newerKey := credential(t, s)
			c.Apply(t, secretYAML("shop", newer, newerKey))
			if got := gateway.secrets(pair, other); !maps.Equal(got, map[string]string{pair: newer + newerKey}) {
				t.Errorf("the gateway is given %v", got)
			}
			waitFor(t, "warning", func() bool { return strings.Contains(logs.String(), "is in another namespace than the proxy") })
			keysAreNowhere(t, s, logs.String(), key, newerKey, foreignKey)
		})
	}
}

// TestConfigMapsOfAPI: a sidecar, which may have no keys, gets the CA certificates in
// ConfigMaps of any namespace and their changes. It keeps them when they are deleted.
func TestConfigMapsOfAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	c.Apply(t, strings.Replace(appsReader, "verbs: [get, list, watch]", "verbs: [get]", 1))
	configMap := func(key, cert string) string {
		return "{apiVersion: v1, kind: ConfigMap, metadata: {name: roots, namespace: other}, data: {other: x, " + key + ": " + strconv.Quote(cert) + "}}"
	}
	for _, v := range []xdswire.Variant{xdswire.SotW, xdswire.Delta} {
		t.Run(v.String(), func(t *testing.T) {
			var logs text
			s := start(t, func(cfg *Config) {
				cfg.ConfigDir, cfg.KubeAccess, cfg.SecretNamespaces = "", c.Config(), []string{"other"}
				cfg.Log = slog.New(slog.NewTextHandler(&logs, nil))
			})
			cert, key := credential(t, s)
			c.Apply(t, configMap("ca.crt", cert)+"\n---\n"+strings.ReplaceAll(secretYAML("roots", cert, key), "namespace: apps", "namespace: other"))
			const roots, suffixed, pair = "configmap://other/roots", "configmap://other/roots-cacert", "kubernetes://other/roots"
			sidecar := dialWire(t, s, true, v, "sidecar", xdswire.SecretType, roots, suffixed, pair)
			for i, name := range []string{"ca.crt", "cacert"} {
				if i > 0 {
					cert, _ = credential(t, s)
					c.Apply(t, configMap(name, cert))
				}
				if got := sidecar.secrets(roots, suffixed, pair); !maps.Equal(got, map[string]string{roots: cert, suffixed: cert}) {
					t.Fatalf("the sidecar is given %v", got)
				}
			}
			c.Kubectl(t, "", "-n", "other", "delete", "configmap", "roots")
			waitFor(t, "warning", func() bool {
				return strings.Contains(logs.String(), "configmap other/roots with key cacert or ca.crt not found")
			})
			keysAreNowhere(t, s, logs.String(), key)
		})
	}
}

const pluginDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: wasmplugins.extensions.istio.io}
spec:
  group: extensions.istio.io
  names: {kind: WasmPlugin, plural: wasmplugins, singular: wasmplugin}
  scope: Namespaced
  versions:
  - {name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// pulledPlugin is a WasmPlugin with the Secret of its registry, %s.
const pulledPlugin = `apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: pulled, namespace: apps}
spec: {url: "oci://registry.example/plugin:v1", imagePullSecret: pull}
---
apiVersion: v1
kind: Secret
metadata: {name: pull, namespace: apps}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '%s'}
`

// TestPullSecretsOfAPI: a sidecar gets the credentials for a plugin's registry, and their changes,
// from a Kubernetes API once the API server permits its account to read Secrets, and not before.
func TestPullSecretsOfAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Start(t)
	c.Apply(t, pluginDefinition)
	c.Apply(t, strings.Replace(appsReader, "verbs: [get, list, watch]", "verbs: [get]", 1))
	config := func(auth string) string { return `{"auths":{"registry.example":{"auth":"` + auth + `"}}}` }
	c.Apply(t, fmt.Sprintf(pulledPlugin, config("Zmlyc3Q6Zmlyc3Q=")))
	var logs text
	s := start(t, func(cfg *Config) {
		cfg.ConfigDir, cfg.KubeAccess, cfg.SecretNamespaces = "", c.Config(), []string{"*"}
		cfg.Log = slog.New(slog.NewTextHandler(&logs, nil))
	})
	const name = mesh.PluginPrefix + "apps.pulled"
	credentials := func(w *wireClient) string {
		t.Helper()
		content := w.next(name)
		for len(content) == 0 {
			content = w.next(name)
		}
		extension, filter := &corev3.TypedExtensionConfig{}, &httpwasmv3.Wasm{}
		for _, b := range content { // one plugin
			if err := errors.Join(proto.Unmarshal(b, extension), extension.GetTypedConfig().UnmarshalTo(filter)); err != nil {
				t.Fatal(err)
			}
		}
		return filter.GetConfig().GetVmConfig().GetEnvironmentVariables().GetKeyValues()[mesh.WasmPullSecret]
	}
	if got := credentials(dialWire(t, s, true, xdswire.Delta, "sidecar", xdswire.ExtensionType, name)); got != "" {
		t.Errorf("without the right the sidecar is given %q", got)
	}
	waitFor(t, "warning", func() bool { return strings.Contains(logs.String(), "is not authorized to read secrets") })
	c.Apply(t, appsReader)
	// A denial counts for a minute: another control plane asks anew.
	s = start(t, func(cfg *Config) {
		cfg.ConfigDir, cfg.KubeAccess, cfg.SecretNamespaces = "", c.Config(), []string{"*"}
		cfg.Log = slog.New(slog.NewTextHandler(&logs, nil))
	})
	for _, v := range []xdswire.Variant{xdswire.SotW, xdswire.Delta} {
		sidecar := dialWire(t, s, true, v, "sidecar", xdswire.ExtensionType, name)
		if got := credentials(sidecar); got != config("Zmlyc3Q6Zmlyc3Q=") {
			t.Fatalf("the sidecar is given %q", got)
		}
		c.Apply(t, fmt.Sprintf(pulledPlugin, config("c2Vjb25kOnNlY29uZA==")))
		if got := credentials(sidecar); got != config("c2Vjb25kOnNlY29uZA==") {
			t.Errorf("the sidecar is given %q", got)
		}
		c.Apply(t, fmt.Sprintf(pulledPlugin, config("Zmlyc3Q6Zmlyc3Q=")))
		if got := credentials(sidecar); got != config("Zmlyc3Q6Zmlyc3Q=") {
			t.Errorf("the sidecar is given %q", got)
		}
	}
	shown := logs.String() + fmt.Sprintf("%+v %#v", s.registry.Current(), s.registry.Current())
	for page := range s.pages() {
		_, body := get(t, s, "/debug/"+page)
		shown += body
	}
	for _, hidden := range []string{"Zmlyc3Q6Zmlyc3Q=", "c2Vjb25kOnNlY29uZA=="} {
		if strings.Contains(shown, hidden) {
			t.Errorf("credentials are shown: %s", hidden)
		}
	}
}
