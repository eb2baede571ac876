package clusters

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// grpcApps are a server and a client with gRPC and the template grpc-agent, as a user that is not
// the user of the agent.
const grpcApps = `
{apiVersion: v1, kind: ServiceAccount, metadata: {name: echo, namespace: sample}}
---
{apiVersion: v1, kind: Service, metadata: {name: echo, namespace: sample}, spec: {selector: {app: echo}, ports: [{name: grpc, port: 7070}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: echo, namespace: sample}, spec: {selector: {matchLabels: {app: echo}}, template: {
  metadata: {labels: {app: echo, security.istio.io/tlsMode: istio}, annotations: {inject.istio.io/templates: grpc-agent}},
  spec: {serviceAccountName: echo, securityContext: {runAsUser: 65532, runAsNonRoot: true},
    containers: [{name: echo, image: "localhost/grpc:v1", imagePullPolicy: Never, ports: [{containerPort: 7070}]}]}}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: grpc-client, namespace: sample}, spec: {selector: {matchLabels: {app: grpc-client}}, template: {
  metadata: {labels: {app: grpc-client}, annotations: {inject.istio.io/templates: grpc-agent}},
  spec: {serviceAccountName: client, securityContext: {runAsUser: 65533, runAsNonRoot: true},
    containers: [{name: client, image: "localhost/grpc:v1", imagePullPolicy: Never, command: [sleep]}]}}}}
`

// testProxyless: with the template grpc-agent, applications whose gRPC library is the xDS client
// call each other with strict mutual TLS, and no Envoy runs in their pods.
func (u *user) testProxyless(t *testing.T) {
	const c = "cluster1"
	envoys := len(u.processes("envoy"))
	if _, err := u.try(grpcApps, "kubectl --context "+c+" apply -f -"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"echo", "grpc-client"} {
		u.run("kubectl --context " + c + " rollout status -n sample deployment " + name + " --timeout=5m")
	}
	call := func(target string) (string, error) {
		return u.try("", "kubectl --context "+c+" exec -n sample deploy/grpc-client -c client -- grpc-call "+target)
	}
	harness.Eventually(t, moved, "an answer by xDS", func() error {
		out, err := call("xds:///echo.sample.svc.cluster.local:7070")
		if err == nil && (!strings.HasPrefix(out, "server: echo-") || !strings.HasSuffix(out, ", caller: spiffe://cluster.local/ns/sample/sa/client\n")) {
			err = fmt.Errorf("answer %q", out)
		}
		return err
	})
	if out, err := call("dns:///echo.sample.svc.cluster.local:7070"); err == nil {
		t.Errorf("plaintext is answered: %s", out)
	}
	if n := len(u.processes("envoy")); n != envoys {
		t.Errorf("%d processes of Envoy, want %d as before", n, envoys)
	}
	// Leases of killed control planes may be left for some time. The client, which has no connection
	// now, is no fault.
	harness.Eventually(t, moved, "the server in the status, and no fault", func() error {
		out, err := u.try("", "meshctl check --context "+c+" >&2; meshctl proxy-status --context "+c)
		if err == nil && !strings.Contains(out, "echo-") {
			err = fmt.Errorf("the status is\n%s", out)
		}
		return err
	})
	u.run("kubectl --context " + c + " delete -n sample deployment/echo deployment/grpc-client service/echo serviceaccount/echo --timeout=3m")
}
