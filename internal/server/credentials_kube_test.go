package server

import (
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"testing"

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
