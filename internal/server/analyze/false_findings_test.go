package analyze_test

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/load"
)

const ingressPods = `
apiVersion: v1
kind: Pod
metadata: {name: ingress-1, namespace: istio-ingress, labels: {istio: ingressgateway}}
status: {podIP: 10.1.0.1}
---
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: istio-ingress}
spec: {selector: {istio: ingressgateway}, ports: [{name: https, port: 443, targetPort: 8443}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: paths, namespace: istio-ingress}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  action: DENY
  rules: [{to: [{operation: {paths: [/admin]}}]}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: istio-ingress}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 8443, name: https, protocol: HTTPS}, hosts: [a.example], tls: TLS}
`

// TestNoFalseFindings: what is right has no finding of the code, and what is wrong beside it has.
func TestNoFalseFindings(t *testing.T) {
	t.Parallel()
	service := func(namespace string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: " + namespace + "}\nspec: {selector: {a: b}, ports: [{name: metrics, port: 9153}]}\n"
	}
	for name, tt := range map[string]struct {
		code, mesh string
		want       bool
	}{
		"paths at a gateway that terminates TLS":     {"MSH0119", strings.Replace(ingressPods, "TLS}\n", "{mode: SIMPLE, credentialName: a}}\n", 1), false},
		"paths at a gateway that passes on TLS":      {"MSH0119", strings.Replace(ingressPods, "TLS}\n", "{mode: PASSTHROUGH}}\n", 1), true},
		"port names of Kubernetes' own namespaces":   {"IST0118", service("kube-system"), false},
		"port names of namespaces with applications": {"IST0118", service("shop"), true},
	} {
		found := check(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "mesh.yaml", Text: []byte(tt.mesh)}}}})
		if got := strings.Contains(texts(found), tt.code); got != tt.want {
			t.Errorf("%s: %s reported: %v, want %v:\n%s", name, tt.code, got, tt.want, texts(found))
		}
	}
}
