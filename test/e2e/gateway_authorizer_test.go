package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// askingGateway has a policy with the action CUSTOM for one host.
const askingGateway = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'extensionProviders: [{name: grpc, envoyExtAuthzGrpc: {service: edge/authorizer.test, port: 9000, timeout: 0.5s}}, {name: http, envoyExtAuthzHttp: {service: edge/authorizer.test, port: 8000, timeout: 0.5s, pathPrefix: /check, includeRequestHeadersInCheck: [x-decide], includeAdditionalHeadersInCheck: {x-added: by Envoy}}}]'}
---
apiVersion: v1
kind: Pod
metadata: {name: ingress, namespace: edge, labels: {istio: ingress}}
spec: {serviceAccountName: ingress, containers: [{name: proxy}]}
status: {podIP: 10.11.0.9, phase: Running}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shop, namespace: edge}
spec: {selector: {istio: ingress}, servers: [{port: {number: 8880, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: edge}
spec: {hosts: ["*"], gateways: [shop], http: [{route: [{destination: {host: app.test}}]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: app, namespace: edge}
spec: {hosts: [app.test], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP, targetPort: %s}], endpoints: [{address: 127.0.0.1}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: authorizer, namespace: edge}
spec:
  hosts: [authorizer.test]
  resolution: STATIC
  ports: [{number: 9000, name: grpc, protocol: GRPC, targetPort: %s}, {number: 8000, name: http, protocol: HTTP, targetPort: %s}]
  endpoints: [{address: 127.0.0.1}]
`

// TestGatewayAsksProviders: a gateway asks the provider of a policy with the action CUSTOM about
// the hosts that it names, obeys the answer, and refuses what another policy denies.
func TestGatewayAsksProviders(t *testing.T) {
	a := &authorizer{ending: make(chan struct{})}
	byGRPC, byHTTP := a.start(t)
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(app.Close)
	dir := harness.ShortDir(t)
	mesh := filepath.Join(dir, "mesh")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	replace(t, filepath.Join(mesh, "cluster1", "mesh.yaml"), fmt.Sprintf(askingGateway, app.URL[strings.LastIndex(app.URL, ":")+1:], byGRPC, byHTTP))
	_, secure := controlPlane(t, dir, mesh)
	gateway := proxy{"ingress", "router", "edge", "ingress", "10.11.0.9", map[string]string{"istio": "ingress"}}
	defer gateway.start(t, dir, secure)()

	for provider, slow := range map[string]int{"grpc": http.StatusForbidden, "http": http.StatusForbidden} {
		t.Run(provider, func(t *testing.T) {
			replace(t, filepath.Join(mesh, "cluster1", "policies.yaml"), `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: edge}
spec: {selector: {matchLabels: {istio: ingress}}, action: CUSTOM, provider: {name: `+provider+`}, rules: [{to: [{operation: {hosts: [guarded.example.com, "guarded.example.com:*"]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: edge}
spec: {selector: {matchLabels: {istio: ingress}}, action: DENY, rules: [{to: [{operation: {methods: [DELETE]}}]}]}
`)
			becomes := func(want int, method, host, decide string) {
				t.Helper()
				eventually(t, fmt.Sprintf("status %d for %s of %s that it should %s", want, method, host, decide), func() error {
					got, _, err := rawRequest(gatewayAt+":8880", method+" /guarded HTTP/1.1\r\nHost: "+host+"\r\nx-decide: "+decide+"\r\n")
					if got != want {
						return fmt.Errorf("status %d: %w", got, err)
					}
					return nil
				})
			}
			becomes(http.StatusPaymentRequired, "GET", "guarded.example.com", "refuse")
			becomes(http.StatusPaymentRequired, "GET", "Guarded.example.com:8880", "refuse")
			becomes(http.StatusOK, "GET", "guarded.example.com", "permit")
			becomes(slow, "GET", "guarded.example.com", "slow")
			becomes(http.StatusForbidden, "DELETE", "guarded.example.com", "permit")
			asked := a.asked.Load()
			becomes(http.StatusOK, "GET", "other.example.com", "refuse")
			if now := a.asked.Load(); now != asked {
				t.Errorf("the provider was asked %d times about a host that no rule names", now-asked)
			}
		})
	}
}
