package multicluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestRemovedRevision: after the end of a revision, ps and check say which proxies and namespaces have no
// control plane, and do not ask replicas whose pods are gone, although their Leases still count.
func TestRemovedRevision(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	m := newMesh(t, "127.11.6")
	m.east.Apply(t, fmt.Sprintf(`
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio.io/rev: canary}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: shop, labels: {app: web, service.istio.io/canonical-name: web}, annotations: {sidecar.istio.io/status: "{}", istio.io/rev: canary}}, spec: {nodeName: none, containers: [{name: web, image: a}, {name: istio-proxy, image: b}]}}
---
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: meshctl-replica-gone, namespace: istio-system, labels: {meshctl.io/replica: "true"}, annotations: {meshctl.io/pod: istio-system/gone, meshctl.io/status-addresses: "127.0.0.1:1"}}, spec: {holderIdentity: gone, renewTime: %q}}
`, time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z")))
	m.east.Kubectl(t, `{"status": {"phase": "Running", "podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}]}}`,
		"-n", "shop", "patch", "pod", "web-1", "--subresource", "status", "--type", "merge", "--patch-file", "/dev/stdin")
	cmd := exec.Command(meshctl, "ps", "--kubeconfig", m.east.kubeconfig)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir}
	if err := cmd.Run(); err != nil {
		t.Errorf("ps: %v", err)
	}
	const want = "without a control plane: 1 pod with proxies of revision canary (web-1.shop), 1 namespace whose label asks for injection (shop); what to do shows: meshctl check --kubeconfig "
	if text := out.String(); !strings.Contains(text, want) || strings.Contains(text, "gone") {
		t.Errorf("ps:\n%s", text)
	}
	text := m.check(t, m.east.kubeconfig)
	for _, want := range []string{"Error | Namespace shop | MSH0130 ", "Error | Pod shop/web-1 | MSH0132 "} {
		if !strings.Contains(text, want) || strings.Contains(text, "gone") {
			t.Errorf("check has no %q:\n%s", want, text)
		}
	}
}
