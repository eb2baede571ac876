package proxyless

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestPolicies: a server enforces the AuthorizationPolicies of its workload, and refuses in doubt.
func TestPolicies(t *testing.T) {
	m := startMesh(t)
	bootstrap, _, _ := m.startAgent(t, "echo-1", "echo")
	startServer(t, "echo-1", bootstrap)
	bootstrap, _, _ = m.startAgent(t, "client", "client")
	client := dialTarget(t, "xds:///echo.shop:80", bootstrap)
	code := func(guest bool) codes.Code {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		if guest {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-role", "guest")
		}
		_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		return status.Code(err)
	}
	const (
		settings  = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'extensionProviders: [{name: opa, envoyExtAuthzGrpc: {service: shop/echo.shop.svc.cluster.local, port: 80}}]'}\n"
		permitted = `{rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]}`
		ok, no    = codes.OK, codes.PermissionDenied
	)
	m.write(t, "settings.yaml", settings)
	for _, c := range []struct {
		name           string
		specs          []string
		anybody, guest codes.Code
	}{
		{"no policy", nil, ok, ok},
		{"another identity is permitted", []string{`{rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/other]}}]}]}`}, no, no},
		{"the identity is permitted", []string{permitted}, ok, ok},
		{"the method is denied", []string{permitted, `{action: DENY, rules: [{to: [{operation: {paths: ["/grpc.testing.TestService/UnaryCall"]}}]}]}`}, no, no},
		{"another method is denied", []string{`{action: DENY, rules: [{to: [{operation: {paths: ["/grpc.testing.TestService/EmptyCall"]}}]}]}`}, ok, ok},
		{"a header is denied", []string{`{action: DENY, rules: [{when: [{key: "request.headers[x-role]", values: [guest]}]}]}`}, ok, no},
		{"a header of gRPC is denied", []string{`{action: DENY, rules: [{when: [{key: "request.headers[grpc-none]", values: [a]}, {key: "request.headers[x-role]", values: [guest]}]}]}`}, ok, no},
		{"a header of gRPC is permitted", []string{`{rules: [{when: [{key: "request.headers[grpc-accept-encoding]", values: ["*"]}]}]}`}, no, no},
		{"a provider decides", []string{`{action: CUSTOM, provider: {name: opa}, rules: [{when: [{key: "request.headers[x-role]", values: [guest]}]}]}`}, ok, no},
		{"a token is required", []string{`{action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}]}]}`}, no, no},
		{"no policy again", nil, ok, ok},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := "# policies\n"
			for i, spec := range c.specs {
				text += fmt.Sprintf("---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: policy-%d, namespace: shop}\nspec: %s\n", i, spec)
			}
			m.write(t, "policies.yaml", text)
			until(t, "decision", func() error {
				if anybody, guest := code(false), code(true); anybody != c.anybody || guest != c.guest {
					return fmt.Errorf("%w: %v, and %v for a guest", errors.New("the server returned"), anybody, guest)
				}
				return nil
			})
		})
	}
	wantNoRefusals(t)
}
