package attacks

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// tenant is a namespace with a workload, and the policy of a tenant in place of %s.
const tenant = `apiVersion: v1
kind: Pod
metadata: {name: web, namespace: apps, labels: {app: web}}
spec: {serviceAccountName: web, containers: [{name: web}]}
status: {podIP: 10.1.0.9}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: apps}
spec: {selector: {app: web}, clusterIP: 10.96.0.1, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: other, labels: {app: web}}
spec: {serviceAccountName: web, containers: [{name: web}]}
status: {podIP: 10.1.0.10}
---
%s
`

// TestPoliciesOfATenant: no policy of a tenant prevents a start of the control plane. One that no
// proxy can enforce closes the tenant's own namespace, and one that refers to no object is attached to no
// sidecar.
func TestPoliciesOfATenant(t *testing.T) {
	t.Parallel()
	const authorization = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: apps}\nspec: "
	for name, tt := range map[string]struct {
		policy string
		closes bool
	}{
		"ALLOW for a Service":          {authorization + "{targetRefs: [{kind: Service, name: web}], rules: [{}]}", true},
		"DENY for a Service":           {authorization + "{targetRefs: [{kind: Service, name: web}], action: DENY, rules: [{}]}", true},
		"ALLOW for a ServiceEntry":     {authorization + "{targetRef: {group: networking.istio.io, kind: ServiceEntry, name: web}, rules: [{}]}", true},
		"misspelt":                     {strings.Replace(authorization, "kind: AuthorizationPolicy", "kind: AuthorisationPolicy", 1) + "{action: DENY}", true},
		"unknown version":              {strings.Replace(authorization, "/v1", "/v9", 1) + "{action: DENY}", true},
		"ALLOW for a Gateway, no name": {authorization + "{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway}], rules: [{}]}", false},
		"DENY for a Gateway, no name":  {authorization + "{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway}], action: DENY, rules: [{}]}", false},
		"DENY for a GatewayClass":      {authorization + "{targetRefs: [{group: gateway.networking.k8s.io, kind: GatewayClass, name: istio-waypoint}], action: DENY, rules: [{}]}", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "mesh"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "mesh", "all.yaml"), fmt.Appendf(nil, tenant, tt.policy), 0o600); err != nil {
				t.Fatal(err)
			}
			starts(t, dir)
			for proxy, closed := range map[string]bool{"web.apps": tt.closes, "web.other": false} {
				out, err := run(t, dir, "render", "--proxy", proxy, "-f", "mesh", "-o", "yaml")
				if err != nil {
					t.Fatalf("render: %v\n%s", err, out)
				}
				if strings.Contains(out, "envoy.filters.http.rbac") != closed {
					t.Errorf("%s has rules: %t, want %t\n%s", proxy, !closed, closed, out)
				}
			}
		})
	}
}

// starts starts a control plane on the directory mesh, and ends it when it is ready.
func starts(t *testing.T, dir string) {
	t.Helper()
	addrs := harness.FreeAddrs(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log harness.LogBuffer
	cmd := exec.CommandContext(ctx, meshctl, "serve", "--config-dir", "mesh", "--state-dir", "state", "--grpc-addr", addrs[0], "--http-addr", addrs[1],
		"--secure-grpc-addr", "", "--monitoring-addr", "")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	eventually(t, "the control plane is ready", func() error {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, log.String())
		default:
		}
		resp, err := client.Get("http://" + addrs[1] + "/ready")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s\n%s", resp.Status, log.String())
		}
		return nil
	})
	cancel()
	<-ended
}
